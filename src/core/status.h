// Errors as values: an Error is a code plus one sentence that tells the reader what to change.
//
// Result<T> is returned wherever outside facts can make a call fail (files, sockets, user input,
// memory, devices).  Programming mistakes are assertions, never Results.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace percheron {

enum class ErrorCode {
    invalid_argument,  // the caller asked for something that makes no sense
    not_found,         // a named file, tensor, field or route does not exist
    corrupt,           // bytes on disk or on the wire contradict themselves
    unsupported,       // well-formed, but this build or machine does not do it
    out_of_memory,     // the plan does not fit; the message says what would
    unavailable,       // not now: full or going down; the same call may work later
    io,                // the operating system refused a read, write or map
    cancelled,         // somebody asked for the work to end
    internal,          // a broken promise of this program
};

std::string_view name_of(ErrorCode code);

class Error {
  public:
    // `reason` is a stable word for programs ("queue_full"), with static storage; empty where the
    // code says enough.
    Error(ErrorCode code, std::string message, std::string_view reason = {})
        : code_(code), message_(std::move(message)), reason_(reason) {}

    ErrorCode code() const { return code_; }
    const std::string& message() const { return message_; }
    std::string_view reason() const { return reason_; }

    // The same error with a prefix that says where it happened: "model.safetensors: header ...".
    Error in(std::string_view place) const;

  private:
    ErrorCode code_;
    std::string message_;
    std::string_view reason_;
};

// Either a T or an Error.  Test with ok() before value().
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : content_(std::move(value)) {}
    Result(Error error) : content_(std::move(error)) {}

    bool ok() const { return content_.index() == 0; }
    explicit operator bool() const { return ok(); }

    T& value() & { return check(), std::get<0>(content_); }
    const T& value() const& { return check(), std::get<0>(content_); }
    T&& value() && { return check(), std::get<0>(std::move(content_)); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    const Error& error() const& { return assert(!ok()), std::get<1>(content_); }
    Error&& error() && { return assert(!ok()), std::get<1>(std::move(content_)); }

  private:
    void check() const { assert(ok() && "value() of a failed Result"); }

    std::variant<T, Error> content_;
};

// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    bool ok() const { return !error_.has_value(); }
    explicit operator bool() const { return ok(); }
    const Error& error() const& { return assert(!ok()), *error_; }
    Error&& error() && { return assert(!ok()), std::move(*error_); }

  private:
    std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace percheron

// Returns the error of a Status or Result expression to the caller, if there is one.
#define PERCHERON_TRY(expression)                                                       \
    do {                                                                                \
        auto percheron_try_result = (expression);                                       \
        if (!percheron_try_result.ok()) return std::move(percheron_try_result).error(); \
    } while (false)

// PERCHERON_ASSIGN(auto header, read_header(file)): declares `header` or returns the error.
#define PERCHERON_JOIN_INNER(a, b) a##b
#define PERCHERON_JOIN(a, b) PERCHERON_JOIN_INNER(a, b)
#define PERCHERON_ASSIGN(declaration, expression)                              \
    auto PERCHERON_JOIN(percheron_result_, __LINE__) = (expression);           \
    if (!PERCHERON_JOIN(percheron_result_, __LINE__).ok())                     \
        return std::move(PERCHERON_JOIN(percheron_result_, __LINE__)).error(); \
    declaration = std::move(PERCHERON_JOIN(percheron_result_, __LINE__)).value()
