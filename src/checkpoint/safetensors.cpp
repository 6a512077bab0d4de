#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <unordered_set>

#include <simdjson.h>

namespace percheron::checkpoint {
namespace {

constexpr std::uint64_t largest_header = 100'000'000;  // the format's own limit

Error corrupt(std::string message) {
    return Error(ErrorCode::corrupt, std::move(message));
}

struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

Result<Shape> read_shape(simdjson::dom::element element) {
    simdjson::dom::array extents;
    if (element.get(extents) != simdjson::SUCCESS) return corrupt("its shape is not a list");
    Shape shape;
    for (simdjson::dom::element extent : extents) {
        std::uint64_t value = 0;
        if (extent.get(value) != simdjson::SUCCESS) {
            return corrupt("its shape holds something that is not a size");
        }
        shape.push_back(value);
    }
    return shape;
}

Result<Range> read_range(simdjson::dom::element element) {
    simdjson::dom::array offsets;
    if (element.get(offsets) != simdjson::SUCCESS || offsets.size() != 2) {
        return corrupt("its data_offsets are not two numbers");
    }
    Range range;
    if (offsets.at(0).get(range.begin) != simdjson::SUCCESS ||
        offsets.at(1).get(range.end) != simdjson::SUCCESS) {
        return corrupt("its data_offsets are not two numbers");
    }
    return range;
}

// One entry of the header against the `size` bytes of data that follow it.
Result<StoredTensor> read_tensor(std::string_view name, simdjson::dom::element element,
                                 std::span<const std::byte> data) {
    StoredTensor tensor;
    tensor.name = name;
    simdjson::dom::object fields;
    if (element.get(fields) != simdjson::SUCCESS) return corrupt("its entry is not an object");
    simdjson::dom::element shape;
    simdjson::dom::element offsets;
    std::string_view type;
    if (fields["dtype"].get(type) != simdjson::SUCCESS) return corrupt("its dtype is missing");
    if (fields["shape"].get(shape) != simdjson::SUCCESS) return corrupt("its shape is missing");
    if (fields["data_offsets"].get(offsets) != simdjson::SUCCESS) {
        return corrupt("its data_offsets are missing");
    }
    if (fields.size() != 3) {
        return corrupt("its entry has fields beside dtype, shape, data_offsets");
    }
    if (!dtype_from_name(type, tensor.dtype)) {
        return Error(ErrorCode::unsupported, "its dtype '" + std::string(type) + "' is unknown");
    }
    PERCHERON_ASSIGN(tensor.shape, read_shape(shape));
    PERCHERON_ASSIGN(const Range range, read_range(offsets));
    if (range.begin > range.end || range.end > data.size()) {
        return corrupt("its bytes " + std::to_string(range.begin) + ".." +
                       std::to_string(range.end) + " reach outside the " +
                       std::to_string(data.size()) + " bytes of data (is the file cut short?)");
    }
    std::size_t count = 0;
    if (!element_count(tensor.shape, count) ||
        count > std::numeric_limits<std::int64_t>::max() / size_of(tensor.dtype)) {
        return corrupt("its shape " + to_string(tensor.shape) + " is larger than any file");
    }
    const std::uint64_t needed = count * size_of(tensor.dtype);
    if (needed != range.end - range.begin) {
        return corrupt("its shape " + to_string(tensor.shape) + " needs " + std::to_string(needed) +
                       " bytes but " + std::to_string(range.end - range.begin) + " are stored");
    }
    tensor.bytes = data.subspan(range.begin, needed);
    return tensor;
}

Status check_metadata(simdjson::dom::element element) {
    simdjson::dom::object entries;
    if (element.get(entries) != simdjson::SUCCESS) return corrupt("__metadata__ is not an object");
    for (const simdjson::dom::key_value_pair entry : entries) {
        if (!entry.value.is_string()) return corrupt("__metadata__ holds something beside strings");
    }
    return {};
}

// Tensors sorted by their bytes must follow each other from the first byte to the last.
Status check_tiling(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data) {
    const std::byte* reached = data.data();
    for (const StoredTensor& tensor : tensors) {
        if (tensor.bytes.data() < reached) {
            return corrupt("tensor " + tensor.name + ": its bytes overlap those of another tensor");
        }
        if (tensor.bytes.data() > reached) {
            return corrupt("tensor " + tensor.name + ": there is a hole before its bytes");
        }
        reached += tensor.bytes.size();
    }
    if (reached != data.data() + data.size()) {
        return corrupt("there are bytes after the last tensor that belong to none");
    }
    return {};
}

}  // namespace

std::string to_string(const Shape& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (i > 0) text += ", ";
        text += std::to_string(shape[i]);
    }
    return text + "]";
}

bool element_count(const Shape& shape, std::size_t& count) {
    count = 1;
    if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) {
        count = 0;
        return true;
    }
    for (const std::size_t extent : shape) {
        if (extent > std::numeric_limits<std::int64_t>::max() / count) return false;
        count *= extent;
    }
    return true;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
    PERCHERON_ASSIGN(MappedFile mapping, MappedFile::open(path));
    SafetensorsFile file(std::move(mapping));
    const Status status = file.read_header();
    if (!status.ok()) return status.error().in(path.string());
    return file;
}

Status SafetensorsFile::read_header() {
    const std::span<const std::byte> bytes = file_.bytes();
    std::uint64_t header_size = 0;
    if (bytes.size() < sizeof(header_size)) return corrupt("is too short for a safetensors file");
    for (std::size_t i = 0; i < sizeof(header_size); ++i) {
        header_size |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    }
    if (header_size > largest_header) {
        return corrupt("its header claims " + std::to_string(header_size) +
                       " bytes: this is not a safetensors file");
    }
    if (header_size > bytes.size() - sizeof(header_size)) {
        return corrupt("its header of " + std::to_string(header_size) +
                       " bytes reaches past the end of the file (is it cut short?)");
    }
    const std::span<const std::byte> data = bytes.subspan(sizeof(header_size) + header_size);

    // The parser may look a little beyond the text, so it gets a padded copy.
    const simdjson::padded_string text(
        reinterpret_cast<const char*>(bytes.data()) + sizeof(header_size), header_size);
    simdjson::dom::parser parser;
    simdjson::dom::element document;
    simdjson::dom::object header;
    if (const auto error = parser.parse(text).get(document); error != simdjson::SUCCESS) {
        return corrupt(std::string("its header is not JSON: ") + simdjson::error_message(error));
    }
    if (document.get(header) != simdjson::SUCCESS) return corrupt("its header is not an object");

    std::unordered_set<std::string_view> names;
    for (const simdjson::dom::key_value_pair entry : header) {
        if (!names.insert(entry.key).second) {
            return corrupt("tensor " + std::string(entry.key) + ": is listed twice");
        }
        if (entry.key == "__metadata__") {
            PERCHERON_TRY(check_metadata(entry.value));
            continue;
        }
        auto tensor = read_tensor(entry.key, entry.value, data);
        if (!tensor.ok()) return tensor.error().in("tensor " + std::string(entry.key));
        tensors_.push_back(std::move(tensor).value());
    }
    // Empty tensors sort before the one that starts at the same byte.
    std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
        if (a.bytes.data() != b.bytes.data()) return a.bytes.data() < b.bytes.data();
        if (a.bytes.size() != b.bytes.size()) return a.bytes.size() < b.bytes.size();
        return a.name < b.name;
    });
    return check_tiling(tensors_, data);
}

}  // namespace percheron::checkpoint
