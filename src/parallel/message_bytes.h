// Values as bytes and back, for messages between processes of one build on one machine.
//
// What a structure is made of is said once, as `fields(archive, value)`; a MessageWriter and a
// MessageReader go through the same list.  A reader never leaves its bytes and never takes memory
// that they do not fill: whatever is wrong with them, ok() is false afterwards.
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace percheron::parallel {

using Message = std::vector<std::uint8_t>;

// Copied as they lie in memory: no padding, and every pattern of bits is a value.
template <class T>
concept PlainBytes = (std::is_arithmetic_v<T> && !std::same_as<T, bool>) ||
                     (std::is_enum_v<T> && !requires { last_of(T{}); });

// Enumerations of names have last_of(), found by the compiler beside the fields of this folder.
template <class T>
concept Named = std::is_enum_v<T> && requires {
    last_of(T{});
};

class MessageWriter {
  public:
    template <class... Values>
    void operator()(const Values&... values) {
        (put(values), ...);
    }
    Message take() { return std::move(bytes_); }

  private:
    void bytes(const void* data, std::size_t count) {
        if (count == 0) return;
        const auto* const first = static_cast<const std::uint8_t*>(data);
        bytes_.insert(bytes_.end(), first, first + count);
    }
    void put(bool value) { put(static_cast<std::uint8_t>(value)); }
    template <PlainBytes T>
    void put(const T& value) {
        bytes(&value, sizeof value);
    }
    template <Named T>
    void put(const T& value) {
        put(static_cast<std::uint8_t>(value));
    }
    void put(const std::chrono::steady_clock::time_point& value) {
        put(std::int64_t{value.time_since_epoch().count()});
    }
    void put(const std::string& value) {
        put(std::uint64_t{value.size()});
        bytes(value.data(), value.size());
    }
    template <class T>
    void put(const std::optional<T>& value) {
        put(value.has_value());
        if (value) put(*value);
    }
    template <class First, class Second>
    void put(const std::pair<First, Second>& value) {
        (*this)(value.first, value.second);
    }
    template <class T, std::size_t count>
    void put(const std::array<T, count>& value) {
        for (const T& element : value) {
            put(element);
        }
    }
    template <class T>
    void put(const std::vector<T>& value) {
        put(std::uint64_t{value.size()});
        if constexpr (PlainBytes<T>) {
            bytes(value.data(), value.size() * sizeof(T));
        } else {
            for (const T& element : value) {
                put(element);
            }
        }
    }
    template <class T>
    requires requires(MessageWriter& writer, const T& value) { fields(writer, value); }
    void put(const T& value) { fields(*this, value); }

    Message bytes_;
};

class MessageReader {
  public:
    explicit MessageReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    template <class... Values>
    void operator()(Values&... values) {
        (get(values), ...);
    }
    void refuse() { ok_ = false; }
    bool ok() const { return ok_; }
    // Nothing was wrong and nothing is left.
    bool done() const { return ok_ && at_ == bytes_.size(); }

  private:
    std::size_t left() const { return bytes_.size() - at_; }
    bool bytes(void* data, std::size_t count) {
        if (!ok_ || count > left()) return ok_ = false;
        if (count > 0) std::memcpy(data, bytes_.data() + at_, count);
        at_ += count;
        return true;
    }
    void get(bool& value) {
        std::uint8_t byte = 0;
        get(byte);
        if (byte > 1) refuse();
        value = byte == 1;
    }
    template <PlainBytes T>
    void get(T& value) {
        bytes(&value, sizeof value);
    }
    template <Named T>
    void get(T& value) {
        std::uint8_t byte = 0;
        get(byte);
        if (byte > static_cast<std::uint8_t>(last_of(T{}))) return refuse();
        value = static_cast<T>(byte);
    }
    void get(std::chrono::steady_clock::time_point& value) {
        std::int64_t count = 0;
        get(count);
        value = std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(count));
    }
    // The number of elements that follow, none of them smaller than `least` bytes.
    std::size_t count_of(std::size_t least) {
        std::uint64_t count = 0;
        get(count);
        if (!ok_ || count > left() / least) {
            refuse();
            return 0;
        }
        return static_cast<std::size_t>(count);
    }
    void get(std::string& value) {
        value.resize(count_of(1));
        bytes(value.data(), value.size());
    }
    template <class T>
    void get(std::optional<T>& value) {
        bool there = false;
        get(there);
        if (!ok_ || !there) return value.reset();
        get(value.emplace());
    }
    template <class First, class Second>
    void get(std::pair<First, Second>& value) {
        (*this)(value.first, value.second);
    }
    template <class T, std::size_t count>
    void get(std::array<T, count>& value) {
        for (T& element : value) {
            get(element);
        }
    }
    template <class T>
    void get(std::vector<T>& value) {
        value.clear();
        if constexpr (PlainBytes<T>) {
            value.resize(count_of(sizeof(T)));
            bytes(value.data(), value.size() * sizeof(T));
        } else {
            // Elements may be larger than their bytes, so they come one by one.
            for (std::size_t left = count_of(1); left > 0 && ok_; --left) {
                get(value.emplace_back());
            }
        }
    }
    template <class T>
    requires requires(MessageReader& reader, T& value) { fields(reader, value); }
    void get(T& value) { fields(*this, value); }

    std::span<const std::uint8_t> bytes_;
    std::size_t at_ = 0;
    bool ok_ = true;
};

}  // namespace percheron::parallel
