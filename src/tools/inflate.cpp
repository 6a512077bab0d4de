#include "tools/inflate.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats.h"
#include "checkpoint/safetensors_writer.h"
#include "core/files.h"
#include "tools/checkpoint_folder.h"
#include "tools/stored_model.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::ExpectedTensor;
using checkpoint::NetworkPart;
using checkpoint::SafetensorsWriter;
using checkpoint::StoredTensor;
using checkpoint::TensorHeader;
using checkpoint::TensorPlace;
using ops::WeightFormat;

constexpr std::size_t step = 128;  // whole groups and blocks of every format

std::size_t rounded_up(std::size_t value, std::size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// Inner widths of the feed-forwards.
struct Widths {
    std::size_t experts = 0;
    std::size_t dense = 0;
};

// A stored tensor as it will be written: as it is, or a grid of `rows` x `row_bytes` that becomes a
// larger one, `fill` repeated in what is new.
struct Written {
    const StoredTensor* source = nullptr;
    TensorHeader header;
    std::size_t rows = 0, row_bytes = 0;  // 0: copied
    std::size_t new_rows = 0, new_row_bytes = 0;
    std::string fill;
    std::string content;  // not empty: instead of the source
};
using Unit = std::vector<Written>;

Written copied(const TensorPlace& place) {
    const StoredTensor& tensor = *place.tensor;
    return {&tensor, {tensor.name, tensor.dtype, tensor.shape}, 0, 0, 0, 0, {}, {}};
}

// A matrix of elements with more rows and columns.
Written widened(const TensorPlace& place, std::size_t new_rows, std::size_t new_columns,
                std::string fill) {
    Written written = copied(place);
    const std::size_t element = size_of(place.tensor->dtype);
    written.rows = place.tensor->shape[0];
    written.row_bytes = place.tensor->shape[1] * element;
    written.new_rows = new_rows;
    written.new_row_bytes = new_columns * element;
    written.fill = std::move(fill);
    written.header.shape = {new_rows, new_columns};
    return written;
}

// A weight [n, k] made [n', k'] in its own format.
Unit widen(const checkpoint::WeightParts& parts, std::size_t n, std::size_t k) {
    Unit unit;
    const auto blocks = [](std::size_t count, std::size_t size) {
        return (count + size - 1) / size;
    };
    const std::string zero(1, '\0');
    switch (parts.format) {
        case WeightFormat::bf16:
        case WeightFormat::f32:
            unit.push_back(widened(parts.data, n, k, zero));
            break;
        case WeightFormat::fp8_block:
            unit.push_back(widened(parts.data, n, k, zero));
            unit.push_back(widened(parts.scales, blocks(n, 128), blocks(k, 128),
                                   std::string("\0\0\x80\x3f", 4)));  // 1.0f
            break;
        case WeightFormat::w4a16: {
            unit.push_back(widened(parts.data, n, k / 8, "\x88"));  // the code of zero
            unit.push_back(widened(parts.scales, n, k / 128, "\x80\x3f"));
            Written shape = copied(parts.shape);
            const std::uint64_t extents[] = {n, k};
            shape.content.assign(reinterpret_cast<const char*>(extents), sizeof extents);
            unit.push_back(std::move(shape));
            break;
        }
        case WeightFormat::nvfp4:
            unit.push_back(widened(parts.data, n, k / 2, zero));
            unit.push_back(widened(parts.scales, n, k / 16, "\x38"));
            unit.push_back(copied(parts.global_scale));
            break;
    }
    for (const TensorPlace& place : parts.unused) {
        unit.push_back(copied(place));
    }
    return unit;
}

class Inflation {
  public:
    explicit Inflation(const Checkpoint& model) : model_(model), config_(model.config()) {}

    Result<std::vector<Unit>> units(const Widths& widths) const {
        std::vector<ExpectedTensor> tensors = checkpoint::outer_tensors(config_);
        for (std::size_t i = 0; i < config_.layers() + config_.mtp_layers; ++i) {
            for (ExpectedTensor& tensor : checkpoint::layer_tensors(config_, i)) {
                tensors.push_back(std::move(tensor));
            }
        }
        if (config_.has_vision) {
            for (ExpectedTensor& tensor : checkpoint::vision_tensors(config_.vision)) {
                tensors.push_back(std::move(tensor));
            }
        }
        std::vector<Unit> units;
        for (const ExpectedTensor& tensor : tensors) {
            PERCHERON_ASSIGN(const checkpoint::WeightParts parts,
                             checkpoint::find_weight(
                                 model_.shards(), checkpoint::stem_of(tensor.name), tensor.shape));
            if (parts.rewritten()) {
                return Error(ErrorCode::unsupported, describe(parts.first()) + ": is stored as " +
                                                         std::string(parts.stored_as) +
                                                         "; widen a checkpoint of another format");
            }
            const std::size_t width = new_width(tensor, widths);
            if (width == 0) {
                Unit unit;
                for (const TensorPlace& place : parts.all()) {
                    unit.push_back(copied(place));
                }
                units.push_back(std::move(unit));
            } else if (is_down(tensor)) {
                units.push_back(widen(parts, tensor.shape[0], width));
            } else {
                units.push_back(widen(parts, width, tensor.shape[1]));
            }
        }
        return units;
    }

    Widths widths_of(std::size_t experts) const {
        const std::size_t least = std::max<std::size_t>(config_.expert_intermediate, 1);
        const std::size_t dense = config_.dense_intermediate * experts / least;
        return {experts,
                std::max(config_.dense_intermediate,
                         experts == least ? config_.dense_intermediate : rounded_up(dense, step))};
    }

  private:
    static bool is_down(const ExpectedTensor& tensor) {
        return tensor.name.ends_with(".down_proj.weight");
    }

    // 0: not the inner width of a feed-forward.
    std::size_t new_width(const ExpectedTensor& tensor, const Widths& widths) const {
        const bool triple = is_down(tensor) || tensor.name.ends_with(".gate_proj.weight") ||
                            tensor.name.ends_with(".up_proj.weight");
        if (!triple || tensor.part == NetworkPart::vision) return 0;
        if (tensor.name.find(".shared_experts.") != std::string::npos) {
            return widths.experts * config_.shared_experts;
        }
        return tensor.role == checkpoint::TensorRole::routed_expert ? widths.experts : widths.dense;
    }

    const Checkpoint& model_;
    const model::ModelConfig& config_;
};

Bytes bytes_of(const std::vector<Unit>& units) {
    Bytes bytes = 0;
    for (const Unit& unit : units) {
        for (const Written& written : unit) {
            bytes += written.header.bytes();
        }
    }
    return bytes;
}

// The new bytes of one tensor.
void make(const Written& written, std::vector<std::byte>& out) {
    out.resize(written.header.bytes());
    if (!written.content.empty()) {
        std::memcpy(out.data(), written.content.data(), out.size());
        return;
    }
    const std::span<const std::byte> source = written.source->bytes;
    if (written.rows == 0) {
        std::copy(source.begin(), source.end(), out.begin());
        return;
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<std::byte>(written.fill[i % written.fill.size()]);
    }
    for (std::size_t row = 0; row < written.rows; ++row) {
        std::memcpy(out.data() + row * written.new_row_bytes,
                    source.data() + row * written.row_bytes, written.row_bytes);
    }
}

Result<std::string> widened_config(const fs::path& model, const Widths& widths) {
    std::ifstream stream(model / "config.json", std::ios::binary);
    auto json = nlohmann::ordered_json::parse(stream, nullptr, false);
    if (!json.is_object()) {
        return Error(ErrorCode::corrupt, (model / "config.json").string() + ": is no JSON object");
    }
    auto& text = json.contains("text_config") ? json["text_config"] : json;
    text["intermediate_size"] = widths.dense;
    text["moe_intermediate_size"] = widths.experts;
    return json.dump(2) + "\n";
}

}  // namespace

Result<SynthReport> inflate(const fs::path& model, const fs::path& out,
                            const InflateOptions& options) {
    PERCHERON_ASSIGN(const StoredModel stored, StoredModel::of(model, out));
    PERCHERON_ASSIGN(const std::unique_ptr<Checkpoint> source, Checkpoint::open(stored.folder()));
    const Inflation inflation(*source);
    const std::size_t own = source->config().expert_intermediate;
    Widths widths = inflation.widths_of(own);
    PERCHERON_ASSIGN(std::vector<Unit> units, inflation.units(widths));
    if (bytes_of(units) > options.size) {
        return Error(ErrorCode::invalid_argument,
                     "--size " + std::to_string(options.size) + ": the model has " +
                         std::to_string(bytes_of(units)) + " bytes already");
    }
    // Bytes grow with the width: double it beyond the size, then halve the interval.
    std::size_t fits = own / step, beyond = std::max<std::size_t>(fits, 1);
    const auto too_large = [&](std::size_t steps) -> Result<bool> {
        PERCHERON_ASSIGN(const auto made, inflation.units(inflation.widths_of(steps * step)));
        return bytes_of(made) > options.size;
    };
    for (bool over = false; !over;) {
        beyond *= 2;
        PERCHERON_ASSIGN(over, too_large(beyond));
    }
    while (beyond - fits > 1) {
        const std::size_t middle = fits + (beyond - fits) / 2;
        PERCHERON_ASSIGN(const bool over, too_large(middle));
        (over ? beyond : fits) = middle;
    }
    if (fits * step > own) widths = inflation.widths_of(fits * step);
    PERCHERON_ASSIGN(units, inflation.units(widths));
    PERCHERON_ASSIGN(const std::string config, widened_config(stored.folder(), widths));

    PERCHERON_TRY(make_output_folder(out, bytes_of(units)));
    SynthReport report;
    report.bytes = bytes_of(units);
    std::vector<std::vector<TensorHeader>> headers;
    for (const Unit& unit : units) {
        auto& list = headers.emplace_back();
        for (const Written& written : unit) {
            list.push_back(written.header);
        }
        report.tensors += unit.size();
    }
    const auto shards = checkpoint::join_into_shards(headers, options.shard_limit);
    report.files = shards.size();
    std::vector<std::byte> buffer;
    std::size_t next = 0;
    Bytes done = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
        PERCHERON_ASSIGN(
            SafetensorsWriter writer,
            SafetensorsWriter::create(out / checkpoint::shard_name(i, shards.size()), shards[i]));
        for (std::size_t tensors = 0; tensors < shards[i].size(); ++next) {
            for (const Written& written : units[next]) {
                make(written, buffer);
                PERCHERON_TRY(writer.write(written.header.name, buffer));
                done += buffer.size();
            }
            tensors += units[next].size();
            if (options.progress) options.progress(done, report.bytes);
        }
        PERCHERON_TRY(writer.finish());
    }
    if (shards.size() > 1) PERCHERON_TRY(checkpoint::write_index(out, shards));
    PERCHERON_TRY(copy_companions(stored.folder(), out, Companions::all));
    report.tokenizer = fs::exists(out / "tokenizer.json");
    // Last, so that a folder with a config is a whole checkpoint.
    PERCHERON_TRY(write_text_file(out / "config.json", config));
    return report;
}

}  // namespace percheron::tools
