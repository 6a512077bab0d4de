#include "tools/quantize_plan.h"

#include "checkpoint/module_list.h"
#include "tools/quantize_formats.h"

namespace percheron::tools {
namespace {

using checkpoint::ExpectedTensor;
using checkpoint::NetworkPart;
using checkpoint::Shape;
using checkpoint::stem_of;
using checkpoint::TensorRole;
using ops::WeightFormat;

std::size_t blocks(std::size_t count) {
    return (count + block_width - 1) / block_width;
}

// Values of a row that share a scale.
std::size_t group_size(WeightFormat format) {
    return format == WeightFormat::nvfp4 ? 16 : block_width;
}

// Patterns of one option, each known by what was written.
class Patterns {
  public:
    static Result<Patterns> of(const std::vector<std::string>& entries, const char* option) {
        Patterns patterns;
        patterns.option_ = option;
        for (const std::string& entry : entries) {
            checkpoint::ModuleList list;
            const Status added = list.add(entry);
            if (!added.ok()) {
                return Error(ErrorCode::invalid_argument,
                             std::string(option) + ": " + added.error().message());
            }
            patterns.entries_.push_back({entry, std::move(list), checkpoint::MatchBudget(), false});
        }
        return patterns;
    }

    bool empty() const { return entries_.empty(); }

    bool match(const std::string& stem) {
        bool any = false;
        for (Entry& entry : entries_) {
            if (!entry.list.contains(stem, entry.budget) && !entry.list.every_linear()) continue;
            entry.used = any = true;
        }
        return any;
    }

    Status check_used() const {
        for (const Entry& entry : entries_) {
            // It would name some of what it means, and which ones nobody could tell.
            if (entry.budget.exhausted() || !entry.budget.given_up().empty()) {
                return Error(ErrorCode::invalid_argument,
                             std::string(option_) + " " + checkpoint::shortened(entry.text) +
                                 ": takes too long to match; write it without repetitions inside "
                                 "repetitions");
            }
            if (entry.used) continue;
            return Error(ErrorCode::invalid_argument,
                         std::string(option_) + " " + entry.text +
                             ": names no matrix that can be quantised; see `percheron inspect` for "
                             "the names");
        }
        return {};
    }

  private:
    struct Entry {
        std::string text;
        checkpoint::ModuleList list;
        checkpoint::MatchBudget budget;
        bool used = false;
    };

    const char* option_ = "";
    std::vector<Entry> entries_;
};

// Matrices that may get options.format.  The router and the hyper-connections decide where values
// go, the embedding is read by rows, and a parameter without ".weight" has no packed name.
bool is_candidate(const ExpectedTensor& tensor) {
    if (tensor.role == TensorRole::routed_expert) return true;
    if (tensor.role != TensorRole::matrix || !tensor.name.ends_with(".weight")) return false;
    switch (tensor.part) {
        case NetworkPart::embedding:
        case NetworkPart::hyper_connections:
        case NetworkPart::router:
        case NetworkPart::norms:
            return false;
        case NetworkPart::mtp:
            return !tensor.name.ends_with("mlp.gate.weight");
        default:
            return true;
    }
}

// Chooses formats by place and patterns.
class Chooser {
  public:
    static Result<Chooser> of(const QuantizeOptions& options) {
        Chooser chooser(options);
        PERCHERON_ASSIGN(chooser.include_, Patterns::of(options.include, "--include"));
        PERCHERON_ASSIGN(chooser.keep_, Patterns::of(options.keep, "--keep"));
        return chooser;
    }

    Result<WeightFormat> format(const ExpectedTensor& tensor, WeightFormat stored) {
        if (tensor.role == TensorRole::plain) return stored;
        const std::string stem = stem_of(tensor.name);
        const bool included =
            is_candidate(tensor) &&
            (include_.empty() ? tensor.role == TensorRole::routed_expert : include_.match(stem));
        if (keep_.match(stem)) return stored;
        const std::size_t n = tensor.shape[0];
        const std::size_t k = tensor.shape[1];
        if (included) {
            const std::size_t group = group_size(options_.format);
            if (k % group != 0 && options_.format != WeightFormat::fp8_block) {
                return Error(ErrorCode::invalid_argument,
                             "tensor " + tensor.name + ": its rows of " + std::to_string(k) +
                                 " do not divide into groups of " + std::to_string(group) +
                                 "; use --format fp8");
            }
            return options_.format;
        }
        const bool multiples = n % block_width == 0 && k % block_width == 0;
        return multiples && options_.rest.has_value() ? *options_.rest : stored;
    }

    Status check_used() const {
        PERCHERON_TRY(include_.check_used());
        return keep_.check_used();
    }

  private:
    explicit Chooser(const QuantizeOptions& options) : options_(options) {}

    const QuantizeOptions& options_;
    Patterns include_, keep_;
};

// What a weight consists of once it is in its format.
std::vector<checkpoint::TensorHeader> output_headers(const PlannedWeight& weight) {
    const std::string& name = weight.tensor.name;
    const std::string stem = stem_of(name);
    const Shape& shape = weight.tensor.shape;
    if (weight.copied()) {
        std::vector<checkpoint::TensorHeader> headers;
        for (const checkpoint::TensorPlace& place : weight.source.all()) {
            headers.push_back({checkpoint::canonical_name(place.tensor->name), place.tensor->dtype,
                               place.tensor->shape});
        }
        return headers;
    }
    if (weight.format == WeightFormat::fp8_block) {
        return {{name, DType::f8_e4m3, shape},
                {name + "_scale_inv", DType::f32, {blocks(shape[0]), blocks(shape[1])}}};
    }
    if (weight.format == WeightFormat::nvfp4) {
        return {{name, DType::u8, {shape[0], shape[1] / 2}},
                {stem + ".weight_scale", DType::f8_e4m3, {shape[0], shape[1] / 16}},
                {stem + ".weight_scale_2", DType::f32, {}}};
    }
    return {{stem + ".weight_packed", DType::i32, {shape[0], shape[1] / 8}},
            {stem + ".weight_scale", DType::bf16, {shape[0], shape[1] / block_width}},
            {stem + ".weight_shape", DType::i64, {2}}};
}

Error not_a_source(const checkpoint::WeightParts& parts) {
    return Error(ErrorCode::unsupported, describe(parts.first()) + ": is stored as " +
                                             std::string(parts.stored_as) +
                                             "; make smaller ones from the BF16 checkpoint");
}

}  // namespace

Result<std::vector<PlannedWeight>> plan_quantization(const checkpoint::Checkpoint& model,
                                                     const QuantizeOptions& options) {
    const model::ModelConfig& config = model.config();
    std::vector<std::vector<ExpectedTensor>> parts;
    parts.push_back(checkpoint::outer_tensors(config));
    for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
        parts.push_back(checkpoint::layer_tensors(config, i));
    }
    if (config.has_vision) parts.push_back(checkpoint::vision_tensors(config.vision));

    PERCHERON_ASSIGN(Chooser chooser, Chooser::of(options));
    const std::size_t layers = config.layers() + config.mtp_layers;
    std::vector<PlannedWeight> plan;
    for (std::size_t section = 0; section < parts.size(); ++section) {
        for (ExpectedTensor& tensor : parts[section]) {
            PlannedWeight weight;
            weight.section = section;
            weight.tensor = std::move(tensor);
            PERCHERON_ASSIGN(weight.source,
                             checkpoint::find_weight(model.shards(), stem_of(weight.tensor.name),
                                                     weight.tensor.shape));
            if (weight.source.rewritten()) return not_a_source(weight.source);
            PERCHERON_ASSIGN(weight.format, chooser.format(weight.tensor, weight.source.format));
            weight.calibrated = options.calibration.has_value() && !weight.copied() &&
                                weight.format == options.format &&
                                weight.format != WeightFormat::fp8_block && section > 0 &&
                                section <= layers;
            weight.outputs = output_headers(weight);
            plan.push_back(std::move(weight));
        }
    }
    PERCHERON_TRY(chooser.check_used());
    return plan;
}

}  // namespace percheron::tools
