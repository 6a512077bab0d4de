#include "checkpoint/torch_vector.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/dtype.h"
#include "core/files.h"

namespace percheron::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr Bytes largest_file = Bytes{16} << 20;
constexpr std::uint32_t local_signature = 0x04034b50u;
constexpr std::uint32_t central_signature = 0x02014b50u;
constexpr std::uint32_t end_signature = 0x06054b50u;
constexpr std::size_t local_size = 30, central_size = 46, end_size = 22;

// Little-endian, whatever the machine.
std::uint32_t number_at(std::string_view bytes, std::size_t at, std::size_t size) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
        value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << 8 * i;
    }
    return value;
}

void append(std::string& bytes, std::uint32_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
        bytes.push_back(static_cast<char>(value >> 8 * i & 0xffu));
    }
}

struct Entry {
    std::string name;
    std::string_view content;
};

// The files of an archive, in the order of its directory.
Result<std::vector<Entry>> entries_of(std::string_view archive, const std::string& path) {
    const Error damaged(ErrorCode::corrupt, path + ": is not a file of torch.save()");
    if (archive.size() < end_size) return damaged;
    std::size_t end = archive.size() - end_size;
    while (number_at(archive, end, 4) != end_signature) {
        if (end == 0 || archive.size() - end > end_size + 0xffffu) return damaged;
        --end;
    }
    const std::size_t count = number_at(archive, end + 10, 2);
    std::size_t at = number_at(archive, end + 16, 4);
    std::vector<Entry> entries;
    for (std::size_t i = 0; i < count; ++i) {
        if (at > archive.size() || archive.size() - at < central_size ||
            number_at(archive, at, 4) != central_signature) {
            return damaged;
        }
        const std::size_t size = number_at(archive, at + 24, 4);
        const std::size_t name_length = number_at(archive, at + 28, 2);
        const std::size_t skipped = number_at(archive, at + 30, 2) + number_at(archive, at + 32, 2);
        const std::size_t local = number_at(archive, at + 42, 4);
        if (number_at(archive, at + 10, 2) != 0) {
            return Error(ErrorCode::unsupported,
                         path + ": is compressed; save it again with torch.save()");
        }
        if (archive.size() - at - central_size < name_length || local > archive.size() ||
            archive.size() - local < local_size ||
            number_at(archive, local, 4) != local_signature) {
            return damaged;
        }
        const std::size_t first = local + local_size + number_at(archive, local + 26, 2) +
                                  number_at(archive, local + 28, 2);
        if (first > archive.size() || archive.size() - first < size) return damaged;
        entries.push_back({std::string(archive.substr(at + central_size, name_length)),
                           archive.substr(first, size)});
        at += central_size + name_length + skipped;
    }
    return entries;
}

float half_value(std::uint16_t bits) {
    const float sign = (bits & 0x8000u) != 0 ? -1.0f : 1.0f;
    const int exponent = bits >> 10 & 31;
    const auto fraction = static_cast<float>(bits & 0x3ffu);
    if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
    return exponent == 0 ? sign * std::ldexp(fraction, -24)
                         : sign * std::ldexp(fraction + 1024.0f, exponent - 25);
}

std::uint32_t crc32_of(std::string_view bytes) {
    std::uint32_t crc = 0xffffffffu;
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc & 1u) != 0 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
        }
    }
    return ~crc;
}

// torch._utils._rebuild_tensor_v2(storage "0", offset 0, (count,), (1,), False, OrderedDict())
std::string pickle_of(std::size_t count) {
    std::string out(
        "\x80\x02"
        "ctorch._utils\n_rebuild_tensor_v2\n((");
    const auto text = [&out](std::string_view value) {
        out.push_back('X');
        append(out, static_cast<std::uint32_t>(value.size()), 4);
        out += value;
    };
    const auto whole = [&out](std::size_t value) {
        out.push_back('J');
        append(out, static_cast<std::uint32_t>(value), 4);
    };
    text("storage");
    out += "ctorch\nBFloat16Storage\n";
    text("0");
    text("cpu");
    whole(count);
    out += "tQ";
    whole(0);
    whole(count);
    out += "\x85";
    whole(1);
    out +=
        "\x85\x89"
        "ccollections\nOrderedDict\n)RtR.";
    return out;
}

}  // namespace

Result<std::vector<float>> read_torch_vector(const fs::path& path, std::size_t count) {
    PERCHERON_ASSIGN(const std::string file, read_text_file(path, largest_file));
    const std::string at = path.string();
    PERCHERON_ASSIGN(const std::vector<Entry> entries, entries_of(file, at));
    std::string_view pickle, values;
    std::size_t tensors = 0;
    for (const Entry& entry : entries) {
        if (entry.name.ends_with("/data.pkl")) pickle = entry.content;
        if (entry.name.find("/data/") != std::string::npos) {
            values = entry.content;
            ++tensors;
        }
    }
    if (tensors != 1) {
        return Error(ErrorCode::unsupported,
                     at + ": holds " + std::to_string(tensors) + " tensors, a mask vector is one");
    }
    const auto is = [&](const char* storage) {
        return pickle.find(std::string("torch\n") + storage) != std::string_view::npos;
    };
    const bool wide = is("FloatStorage");
    const bool half = is("HalfStorage");
    if (!wide && !half && !is("BFloat16Storage")) {
        return Error(ErrorCode::unsupported,
                     at + ": must hold values of type bfloat16, float16 or float32");
    }
    const std::size_t size = wide ? 4 : 2;
    if (values.size() != count * size) {
        return Error(ErrorCode::corrupt, at + ": holds " + std::to_string(values.size() / size) +
                                             " values, the drafter's hidden_size is " +
                                             std::to_string(count));
    }
    std::vector<float> result(count);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t bits = number_at(values, i * size, size);
        if (wide) {
            result[i] = std::bit_cast<float>(bits);
        } else if (half) {
            result[i] = half_value(static_cast<std::uint16_t>(bits));
        } else {
            result[i] = static_cast<float>(BFloat16::from_bits(static_cast<std::uint16_t>(bits)));
        }
        if (!std::isfinite(result[i])) {
            return Error(ErrorCode::corrupt,
                         at + ": value " + std::to_string(i) + " is not a finite number");
        }
    }
    return result;
}

std::string torch_vector_file(std::span<const float> values, std::string_view name) {
    std::string data;
    for (const float value : values) {
        append(data, BFloat16(value).bits, 2);
    }
    const std::array<std::pair<std::string, std::string>, 3> files = {{
        {std::string(name) + "/data.pkl", pickle_of(values.size())},
        {std::string(name) + "/data/0", std::move(data)},
        {std::string(name) + "/version", "3\n"},
    }};
    std::string archive, directory;
    for (const auto& [file, content] : files) {
        const auto offset = static_cast<std::uint32_t>(archive.size());
        std::string common;
        append(common, 0, 2);  // flags
        append(common, 0, 2);  // stored as it is
        append(common, 0, 4);  // no time
        append(common, crc32_of(content), 4);
        append(common, static_cast<std::uint32_t>(content.size()), 4);
        append(common, static_cast<std::uint32_t>(content.size()), 4);
        append(common, static_cast<std::uint32_t>(file.size()), 2);
        append(common, 0, 2);  // no extra field
        append(archive, local_signature, 4);
        append(archive, 20, 2);  // version needed
        archive += common + file + content;
        append(directory, central_signature, 4);
        append(directory, 20, 2);  // version made by
        append(directory, 20, 2);
        directory += common;
        append(directory, 0, 2);  // no comment
        append(directory, 0, 2);  // disk
        append(directory, 0, 2);
        append(directory, 0, 4);
        append(directory, offset, 4);
        directory += file;
    }
    const auto offset = static_cast<std::uint32_t>(archive.size());
    archive += directory;
    append(archive, end_signature, 4);
    append(archive, 0, 4);  // disks
    append(archive, static_cast<std::uint32_t>(files.size()), 2);
    append(archive, static_cast<std::uint32_t>(files.size()), 2);
    append(archive, static_cast<std::uint32_t>(directory.size()), 4);
    append(archive, offset, 4);
    append(archive, 0, 2);
    return archive;
}

}  // namespace percheron::checkpoint
