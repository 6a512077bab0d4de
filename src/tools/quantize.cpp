#include "tools/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/files.h"
#include "core/thread_pool.h"
#include "tools/checkpoint_folder.h"
#include "tools/quantize_formats.h"
#include "tools/quantize_plan.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorHeader;
using ops::WeightFormat;

constexpr std::size_t slab_rows = 128;  // rows of one FP8 block

// The packed bytes of one weight, in the order of PlannedWeight::outputs.
struct PackedWeight {
    std::vector<std::vector<std::byte>> parts;
    RoundingError error;
};

template <class T>
std::span<T> typed(std::vector<std::byte>& bytes) {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// Rounds a whole matrix, slabs of rows side by side.
class MatrixRounder {
  public:
    explicit MatrixRounder(std::size_t threads) : pool_(ThreadPoolOptions{.threads = threads}) {}

    Result<PackedWeight> round(const PlannedWeight& weight, const ops::WeightMatrix& source) {
        PackedWeight packed;
        for (const TensorHeader& output : weight.outputs) {
            packed.parts.emplace_back(output.bytes());
        }
        const std::size_t slabs = (source.n + slab_rows - 1) / slab_rows;
        std::vector<RoundingError> errors(slabs);
        pool_.parallel_for(slabs, [&](std::size_t slab, std::size_t) {
            errors[slab] = round_slab(weight.format, source, slab, packed);
        });
        for (const RoundingError& error : errors) {
            packed.error += error;
        }
        // A NaN or an infinity anywhere in the matrix ends up here.
        if (!std::isfinite(packed.error.squared_sum)) {
            return Error(ErrorCode::corrupt, checkpoint::describe(weight.source.data) +
                                                 ": holds values that are not finite");
        }
        if (weight.format == WeightFormat::w4a16) {
            const std::uint64_t shape[2] = {source.n, source.k};
            std::memcpy(packed.parts[2].data(), shape, sizeof(shape));
        }
        return packed;
    }

  private:
    static RoundingError round_slab(WeightFormat format, const ops::WeightMatrix& source,
                                    std::size_t slab, PackedWeight& packed) {
        const std::size_t k = source.k;
        const std::size_t first = slab * slab_rows;
        const std::size_t rows = std::min(slab_rows, source.n - first);
        std::vector<float> weights(rows * k);
        for (std::size_t row = 0; row < rows; ++row) {
            ops::dequantise_row(source, first + row, weights.data() + row * k);
        }
        RoundingError error;
        for (const float weight : weights) {
            error.squared_sum += weight * 0.0f;  // NaN if any is not finite
        }
        if (error.squared_sum != 0) return error;
        if (format == WeightFormat::fp8_block) {
            const std::size_t columns = (k + slab_rows - 1) / slab_rows;
            return round_to_fp8_blocks(
                weights, rows, k, typed<Float8E4M3>(packed.parts[0]).subspan(first * k, rows * k),
                typed<float>(packed.parts[1]).subspan(slab * columns, columns));
        }
        const auto words = typed<std::uint32_t>(packed.parts[0]);
        const auto scales = typed<BFloat16>(packed.parts[1]);
        for (std::size_t row = 0; row < rows; ++row) {
            error += round_to_w4a16(std::span(weights).subspan(row * k, k),
                                    words.subspan((first + row) * (k / 8), k / 8),
                                    scales.subspan((first + row) * (k / 128), k / 128));
        }
        return error;
    }

    ThreadPool pool_;
};

class Quantizer {
  public:
    Quantizer(Checkpoint& model, const fs::path& out, const QuantizeOptions& options)
        : model_(model), out_(out), options_(options), rounder_(options.threads) {}

    Result<QuantizeReport> run(const std::vector<PlannedWeight>& plan) {
        std::vector<std::vector<TensorHeader>> units;
        for (const PlannedWeight& weight : plan) {
            units.push_back(weight.outputs);
            for (const checkpoint::TensorPlace& place : weight.source.all()) {
                total_ += place.tensor->bytes.size();
            }
        }
        const auto shards = checkpoint::join_into_shards(units, options_.shard_limit);
        std::size_t next = 0;
        for (std::size_t i = 0; i < shards.size(); ++i) {
            const std::string name = checkpoint::shard_name(i, shards.size());
            PERCHERON_ASSIGN(SafetensorsWriter writer,
                             SafetensorsWriter::create(out_ / name, shards[i]));
            for (std::size_t tensors = 0; tensors < shards[i].size(); ++next) {
                PERCHERON_TRY(write(plan[next], writer));
                tensors += plan[next].outputs.size();
            }
            PERCHERON_TRY(writer.finish());
        }
        if (shards.size() > 1) PERCHERON_TRY(checkpoint::write_index(out_, shards));
        report_.files = shards.size();
        for (auto& [name, format] : report_.formats) {
            const RoundingError& error = errors_[name];
            report_.bytes += format.bytes;
            if (error.squared_sum > 0) {
                format.relative_error = std::sqrt(error.squared_error / error.squared_sum);
            }
        }
        return std::move(report_);
    }

  private:
    Status write(const PlannedWeight& weight, SafetensorsWriter& writer) {
        const std::string format(ops::name_of(weight.format));
        if (weight.copied()) {
            const std::vector<checkpoint::TensorPlace> places = weight.source.all();
            for (std::size_t i = 0; i < places.size(); ++i) {
                PERCHERON_TRY(writer.write(weight.outputs[i].name, places[i].tensor->bytes));
            }
        } else {
            PERCHERON_ASSIGN(const ops::WeightMatrix source,
                             model_.matrix(checkpoint::stem_of(weight.tensor.name), weight.rows(),
                                           weight.columns()));
            PERCHERON_ASSIGN(const PackedWeight packed, rounder_.round(weight, source));
            for (std::size_t i = 0; i < packed.parts.size(); ++i) {
                PERCHERON_TRY(writer.write(weight.outputs[i].name, packed.parts[i]));
            }
            errors_[format] += packed.error;
        }
        QuantizeReport::Format& tally = report_.formats[format];
        ++tally.tensors;
        for (const TensorHeader& output : weight.outputs) {
            tally.bytes += output.bytes();
        }
        for (const checkpoint::TensorPlace& place : weight.source.all()) {
            done_ += place.tensor->bytes.size();
        }
        if (options_.progress) options_.progress(done_, total_);
        return {};
    }

    Checkpoint& model_;
    const fs::path& out_;
    const QuantizeOptions& options_;
    MatrixRounder rounder_;
    QuantizeReport report_;
    std::map<std::string, RoundingError> errors_;
    Bytes done_ = 0;
    Bytes total_ = 0;
};

}  // namespace

Result<QuantizeReport> quantize(const fs::path& model, const fs::path& out,
                                const QuantizeOptions& options) {
    PERCHERON_ASSIGN(const std::unique_ptr<Checkpoint> source, Checkpoint::open(model));
    PERCHERON_ASSIGN(const std::vector<PlannedWeight> plan, plan_quantization(*source, options));
    PERCHERON_ASSIGN(const std::string config, quantized_config(model, plan, options));
    PERCHERON_TRY(make_output_folder(out));
    PERCHERON_ASSIGN(QuantizeReport report, Quantizer(*source, out, options).run(plan));
    PERCHERON_TRY(copy_companions(model, out, Companions::all));
    // Last, so that a folder with a config is a whole checkpoint.
    PERCHERON_TRY(write_text_file(out / "config.json", config));
    return report;
}

}  // namespace percheron::tools
