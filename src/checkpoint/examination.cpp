#include "checkpoint/examination.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <unordered_set>

#include "checkpoint/architecture.h"
#include "checkpoint/formats.h"
#include "checkpoint/fused_names.h"
#include "checkpoint/names.h"

namespace percheron::checkpoint {
namespace {

// A checkpoint that lacks thousands of tensors is told so by the first few.
constexpr std::size_t most_problems = 20;
// Nor does a config that is wrong in thousands of ways fill the log.
constexpr std::size_t most_disagreements = 20;

bool is_quantised(const WeightParts& parts) {
    return !is_unquantised(parts.stored_as);
}

// A matrix and how it is stored.
struct StoredMatrix {
    std::string stem;
    std::string_view form;  // contradiction() knows them
    bool quantised;
    bool linear;
};

class Examination {
  public:
    Examination(const ShardSet& shards, Inventory& inventory)
        : shards_(shards), inventory_(inventory) {}

    bool full() const { return inventory_.problems.size() >= most_problems; }

    void take(const std::vector<ExpectedTensor>& expected) {
        for (const ExpectedTensor& tensor : expected) {
            if (full()) return;
            take(tensor);
        }
    }

    // Marks a stored tensor as understood although the network computes without it.
    void take_unused(const TensorPlace& place, const std::string& canonical) {
        const ops::WeightFormat format =
            place.tensor->dtype == DType::f32 ? ops::WeightFormat::f32 : ops::WeightFormat::bf16;
        count(inventory_.formats, ops::name_of(format), {place});
        taken_.insert(canonical);
    }

    bool taken(const std::string& canonical) const { return taken_.contains(canonical); }
    const std::vector<StoredMatrix>& matrices() const { return matrices_; }

  private:
    void take(const ExpectedTensor& expected) {
        auto parts = find_weight(shards_, stem_of(expected.name), expected.shape);
        if (!parts.ok()) {
            inventory_.problems.push_back(parts.error());
            return;
        }
        if (is_quantised(*parts) && expected.role == TensorRole::plain) {
            inventory_.problems.emplace_back(ErrorCode::unsupported,
                                             describe(parts->first()) +
                                                 ": must be BF16 or F32, this tensor is "
                                                 "never quantised");
            return;
        }
        if (parts->rewritten()) {
            std::size_t elements = 0;
            element_count(expected.shape, elements);
            inventory_.rewritten_bytes += elements * sizeof(float);
        }
        if (expected.role != TensorRole::plain) {
            matrices_.push_back(
                {stem_of(expected.name),
                 parts->global_scale_is_inverse ? compressed_nvfp4 : parts->stored_as,
                 is_quantised(*parts), is_linear(expected)});
        }
        // A stack that several weights share is counted with the first of them.
        std::vector<TensorPlace> places = parts->all();
        std::erase_if(places, [this](const TensorPlace& place) {
            return taken(canonical_name(place.tensor->name));
        });
        count(inventory_.formats, parts->stored_as, places);
        count(inventory_.parts[expected.part], parts->stored_as, places);
    }

    void count(std::map<std::string, FormatTally>& tallies, std::string_view form,
               const std::vector<TensorPlace>& places) {
        FormatTally& tally = tallies[std::string(form)];
        ++tally.tensors;
        for (const TensorPlace& place : places) {
            tally.bytes += place.tensor->bytes.size();
            taken_.insert(canonical_name(place.tensor->name));
        }
    }

    const ShardSet& shards_;
    Inventory& inventory_;
    std::unordered_set<std::string> taken_;
    std::vector<StoredMatrix> matrices_;
};

// Holds what is stored to what a config says.
class Comparison {
  public:
    // `counts`: exempt weights are counted by this description.
    Comparison(const QuantizationConfig& claim, bool counts, Inventory& inventory)
        : claim_(claim), counts_(counts), inventory_(inventory) {}

    void take(const StoredMatrix& matrix) {
        const bool exempt =
            names(claim_.exempt, matrix.stem) || (matrix.linear && claim_.exempt.every_linear());
        const ClaimedGroup* const group = exempt ? nullptr : group_of(matrix);
        // What was given up names nothing, which says nothing about the weight.
        if (budget_.exhausted()) return;
        if (!matrix.quantised && exempt) {
            if (counts_) inventory_.ignored.push_back(matrix.stem);
        } else if (!matrix.quantised && group != nullptr) {
            note("stored as " + std::string(matrix.form) + " but not exempt", matrix);
        } else if (matrix.quantised && exempt) {
            note("stored as " + std::string(matrix.form) + " but exempt", matrix);
        } else if (matrix.quantised && group == nullptr) {
            note("stored as " + std::string(matrix.form) + " but no target", matrix);
        } else if (matrix.quantised) {
            compare(matrix, *group);
        }
    }

    void finish() {
        for (const std::string& oddity : claim_.oddities) {
            if (&oddity - claim_.oddities.data() == most_disagreements) break;
            inventory_.warnings.push_back(claim_.name + ": " + oddity + "; the files decide");
        }
        for (const std::string& complaint : budget_.complaints())
            inventory_.warnings.push_back(claim_.name + ": " + complaint + "; the files decide");
    }

  private:
    void compare(const StoredMatrix& matrix, const ClaimedGroup& group) {
        const auto stored = [&](const ClaimedGroup& where, const std::string& rest) {
            note("stored as " + std::string(matrix.form) + ", where " + where.name + rest, matrix);
        };
        if (const std::string wrong = contradiction(group, matrix.form); !wrong.empty()) {
            stored(group, " says " + wrong);
        } else if (const std::string unsaid = silence(group, matrix.form); !unsaid.empty()) {
            stored(group, " does not say " + unsaid);
        }
        // Others that name it in the same way: who reads them may take the last one.
        const bool named = names(group.targets, matrix.stem);
        for (const ClaimedGroup& other : claim_.groups) {
            if (&other == &group || budget_.exhausted()) continue;
            const std::string wrong = contradiction(other, matrix.form);
            if (wrong.empty()) continue;
            if (named ? names(other.targets, matrix.stem) : other.targets.every_linear())
                stored(other, ", which names it too, says " + wrong);
        }
    }

    // Whether a list names the weight, or each of the pieces that a converter may have made of it.
    bool names(const ModuleList& list, const std::string& stem) {
        if (list.contains(stem, budget_)) return true;
        const std::vector<std::string> pieces = pieces_of(stem);
        return !pieces.empty() &&
               std::all_of(pieces.begin(), pieces.end(),
                           [&](const std::string& piece) { return list.contains(piece, budget_); });
    }

    const ClaimedGroup* group_of(const StoredMatrix& matrix) {
        for (const ClaimedGroup& group : claim_.groups) {
            if (names(group.targets, matrix.stem)) return &group;
            if (budget_.exhausted()) break;
        }
        const auto every =
            std::find_if(claim_.groups.begin(), claim_.groups.end(),
                         [](const ClaimedGroup& group) { return group.targets.every_linear(); });
        return matrix.linear && every != claim_.groups.end() ? &*every : nullptr;
    }

    void note(std::string what, const StoredMatrix& matrix) {
        std::vector<Disagreement>& all = inventory_.disagreements;
        auto place = std::find_if(all.begin(), all.end(), [&](const Disagreement& one) {
            return one.config == claim_.name && one.what == what;
        });
        if (place == all.end() && all.size() >= most_disagreements) {
            what = "stored otherwise than described in yet other ways";
            place = std::prev(all.end());
            if (place->what != what) place = all.end();
        }
        if (place == all.end()) place = all.insert(all.end(), {claim_.name, std::move(what), {}});
        place->weights.push_back(matrix.stem);
    }

    const QuantizationConfig& claim_;
    const bool counts_;
    Inventory& inventory_;
    MatchBudget budget_;
};

// Packed weights of which no config says that they are.
void find_unsaid(const std::vector<StoredMatrix>& matrices, Inventory& inventory) {
    std::map<std::string_view, Disagreement> forms;
    for (const StoredMatrix& matrix : matrices) {
        if (!matrix.quantised) continue;
        Disagreement& form = forms[matrix.form];
        form.config = "quantization_config";
        form.what = "stored as " + std::string(matrix.form) + ", but there is none";
        form.weights.push_back(matrix.stem);
    }
    for (auto& [name, form] : forms)
        inventory.disagreements.push_back(std::move(form));
}

void compare(const std::vector<StoredMatrix>& matrices, std::span<const QuantizationConfig> claims,
             Inventory& inventory) {
    if (claims.empty()) find_unsaid(matrices, inventory);
    for (const QuantizationConfig& claim : claims) {
        if (claim.silent) continue;
        Comparison comparison(claim, &claim == claims.data(), inventory);
        for (const StoredMatrix& matrix : matrices)
            comparison.take(matrix);
        comparison.finish();
    }
    for (const Disagreement& disagreement : inventory.disagreements)
        inventory.warnings.push_back(sentence(disagreement));
}

// Modules of which tensors are stored, but not all that their account lists.
void find_missing(const ShardSet& shards, const QuantizationConfig& claim, Inventory& inventory) {
    for (const std::vector<std::string>& names : claim.stored_together) {
        const auto is_stored = [&](const std::string& name) { return bool(shards.find(name)); };
        if (std::none_of(names.begin(), names.end(), is_stored)) continue;
        for (const std::string& name : names) {
            if (inventory.problems.size() >= most_problems) return;
            if (is_stored(name)) continue;
            inventory.problems.emplace_back(
                ErrorCode::not_found,
                shards.folder().string() + ": tensor " + name +
                    ": quantization_config.json lists it, but it is in none of the files");
        }
    }
}

bool any_below(const ShardSet& shards, std::string_view prefix) {
    return std::any_of(shards.tensors().begin(), shards.tensors().end(),
                       [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

// Tensors some converters keep that say nothing new: copies of the embedding and head in the MTP
// layer, rotary tables of an architecture without rotation, scales of a quantised cache (an fp8
// cache here gives every row its own).
bool known_but_unused(std::string_view canonical) {
    for (const std::string_view suffix : {"shared_head.head.weight", "rotary_emb.inv_freq",
                                          ".k_scale", ".v_scale", ".q_scale", ".kv_scale"}) {
        if (canonical.ends_with(suffix)) return true;
    }
    return canonical.starts_with(text_prefix) && canonical.ends_with(".embed_tokens.weight");
}

}  // namespace

void examine_tensors(const ShardSet& shards, model::ModelConfig& config,
                     std::span<const QuantizationConfig> claims, Inventory& inventory) {
    Examination examination(shards, inventory);
    examination.take(outer_tensors(config));
    for (std::size_t i = 0; i < config.layers() && !examination.full(); ++i) {
        examination.take(layer_tensors(config, i));
    }

    const std::size_t promised = config.mtp_layers;
    config.mtp_layers = 0;
    while (!examination.full() &&
           any_below(shards, layer_prefix(config.layers() + config.mtp_layers))) {
        examination.take(layer_tensors(config, config.layers() + config.mtp_layers));
        ++config.mtp_layers;
    }
    inventory.mtp = config.mtp_layers > 0;
    if (config.mtp_layers != promised) {
        inventory.warnings.push_back(
            "config.json: num_nextn_predict_layers is " + std::to_string(promised) + " but " +
            std::to_string(config.mtp_layers) + " MTP layers are stored; the files decide");
    }

    const bool tower_stored = any_below(shards, vision_prefix);
    if (config.has_vision && !tower_stored) {
        inventory.warnings.push_back(
            "config.json: vision_config is there but no vision tensor is; text only");
    }
    config.has_vision = config.has_vision && tower_stored;
    inventory.vision = config.has_vision;
    if (config.has_vision) examination.take(vision_tensors(config.vision));

    compare(examination.matrices(), claims, inventory);
    for (const QuantizationConfig& claim : claims)
        find_missing(shards, claim, inventory);

    for (const auto& [name, place] : shards.tensors()) {
        if (examination.taken(name)) continue;
        if (known_but_unused(name)) {
            examination.take_unused(place, name);
        } else {
            inventory.unclassified.push_back(place.tensor->name);
        }
    }
    std::sort(inventory.unclassified.begin(), inventory.unclassified.end());
    // A tensor nobody reads may be a bias, a scale or a layer that changes the result.
    if (inventory.problems.empty() && !inventory.unclassified.empty()) {
        const TensorPlace first = shards.find(canonical_name(inventory.unclassified.front()));
        inventory.problems.emplace_back(
            ErrorCode::unsupported,
            describe(first) + ": the network has no place for it (" +
                std::to_string(inventory.unclassified.size()) + " such tensors)" +
                (tower_stored && !inventory.vision ? "; is vision_config missing in config.json?"
                                                   : ""));
    }
}

}  // namespace percheron::checkpoint
