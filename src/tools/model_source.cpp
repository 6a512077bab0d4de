#include "tools/model_source.h"

#include <string>
#include <utility>

#include "checkpoint/config.h"
#include "checkpoint/synthetic_source.h"
#include "tools/model_path.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;

Result<checkpoint::SyntheticModel> made_up(const fs::path& model) {
    PERCHERON_ASSIGN(const checkpoint::SyntheticSpec spec, synthetic_spec(model.string()));
    return checkpoint::make_synthetic_model(spec);
}

}  // namespace

Result<ModelSource> open_model(const fs::path& model, std::size_t threads, bool fp4_activations) {
    const auto nothing_to_round = [&] {
        return Error(ErrorCode::invalid_argument,
                     model.string() +
                         ": no weight is stored in NVFP4 with an input scale, so that "
                         "--fp4-activations has nothing to round; leave it out");
    };
    ModelSource source;
    if (fp4_activations && is_synthetic(model.string())) return nothing_to_round();
    if (is_synthetic(model.string())) {
        PERCHERON_ASSIGN(checkpoint::SyntheticModel made, made_up(model));
        source.config = made.config;
        source.inventory = checkpoint::inventory_of(made);
        auto weights = std::make_shared<checkpoint::SyntheticSource>(std::move(made), threads);
        source.weight_bytes = weights->bytes();
        source.weights = std::move(weights);
        return source;
    }
    PERCHERON_ASSIGN(std::shared_ptr<checkpoint::Checkpoint> opened,
                     checkpoint::Checkpoint::open(model));
    source.config = opened->config();
    source.inventory = opened->inventory();
    source.weight_bytes = opened->mapped_bytes() + opened->inventory().rewritten_bytes;
    if (fp4_activations) {
        if (!source.inventory.formats.contains("nvfp4")) return nothing_to_round();
        opened->use_input_scales();
    }
    source.weights = opened;
    source.files = std::move(opened);
    return source;
}

Result<checkpoint::Inventory> inspect_model(const fs::path& model, bool values) {
    using Reading = checkpoint::Checkpoint::Reading;
    if (!is_synthetic(model.string())) {
        return checkpoint::Checkpoint::inspect(model, values ? Reading::values : Reading::headers);
    }
    PERCHERON_ASSIGN(const checkpoint::SyntheticModel made, made_up(model));
    return checkpoint::inventory_of(made);
}

Result<model::ModelConfig> read_model_config(const fs::path& model) {
    if (!is_synthetic(model.string())) return checkpoint::read_config(model);
    PERCHERON_ASSIGN(checkpoint::SyntheticModel made, made_up(model));
    return std::move(made.config);
}

Result<fs::path> text_folder(const fs::path& model) {
    if (!is_synthetic(model.string())) return model;
    PERCHERON_ASSIGN(const checkpoint::SyntheticSpec spec, synthetic_spec(model.string()));
    if (spec.vocabulary < checkpoint::embedded_vocabulary) {
        return Error(ErrorCode::invalid_argument,
                     model.string() + ": vocabulary=" + std::to_string(spec.vocabulary) +
                         " is too small for the embedded tokenizer; name at least " +
                         std::to_string(checkpoint::embedded_vocabulary));
    }
    return resolve_model("");
}

}  // namespace percheron::tools
