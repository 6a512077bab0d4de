#include "tools/quantize_experts.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/dtype.h"

namespace percheron::tools {
namespace {

using checkpoint::stem_of;
using checkpoint::TensorRole;
using ops::WeightFormat;

constexpr std::size_t batch_rows = 2 * Hessian::rows_a_sum;

void round_to_bf16(Rows<float> rows) {
    for (std::size_t row = 0; row < rows.rows; ++row) {
        for (std::size_t column = 0; column < rows.columns; ++column)
            rows.row(row)[column] = rounded_to_bf16(rows.row(row)[column]);
    }
}

// The number in "….experts.12.gate_proj", and what follows it.
bool split_expert(const std::string& stem, std::size_t& expert, std::string& matrix) {
    constexpr std::string_view mark = ".experts.";
    const std::size_t at = stem.find(mark);
    if (at == std::string::npos) return false;
    const std::size_t dot = stem.find('.', at + mark.size());
    expert = std::stoul(stem.substr(at + mark.size()));
    matrix = stem.substr(dot + 1);
    return true;
}

std::size_t group_of(WeightFormat format) {
    return format == WeightFormat::nvfp4 ? 16 : 128;
}

}  // namespace

Result<float> planned_global_scale(const PlannedWeight& weight, std::span<const PlannedWeight> plan,
                                   model::WeightSource& source, ThreadPool& pool) {
    if (weight.format != WeightFormat::nvfp4) return 1.0f;
    const std::string stem = stem_of(weight.tensor.name);
    std::string partner = stem;
    for (const auto& [one, other] :
         {std::pair{"gate_proj", "up_proj"}, std::pair{"up_proj", "gate_proj"}}) {
        if (stem.ends_with(one)) {
            partner = stem.substr(0, stem.size() - std::string_view(one).size()) + other;
        }
    }
    float largest = 0;
    for (const PlannedWeight& other : plan) {
        const std::string name = stem_of(other.tensor.name);
        if (other.format != WeightFormat::nvfp4 || (name != stem && name != partner)) continue;
        PERCHERON_ASSIGN(const ops::WeightMatrix matrix,
                         source.matrix(name, other.rows(), other.columns()));
        largest = std::max(largest, largest_magnitude(matrix, pool));
    }
    return nvfp4_global_scale(largest);
}

Result<ops::WeightMatrix> LayerCalibration::source_of(const PlannedWeight& weight) const {
    return replaced_.matrix(stem_of(weight.tensor.name), weight.rows(), weight.columns());
}

// ---- matrices outside the routed experts

bool LayerCalibration::watches() const {
    return std::any_of(weights_.begin(), weights_.end(), [](const PlannedWeight& weight) {
        return weight.calibrated && weight.tensor.role != TensorRole::routed_expert;
    });
}

ProductWatcher LayerCalibration::watcher() {
    by_data_.clear();
    for (const PlannedWeight& weight : weights_) {
        if (!weight.calibrated || weight.tensor.role == TensorRole::routed_expert) continue;
        const auto matrix = source_of(weight);
        if (matrix.ok()) by_data_[matrix->data] = &weight;
    }
    return [this](std::span<const ops::Linear> products) {
        std::vector<std::pair<const float*, Hessian*>> added;  // inputs of this set
        for (const ops::Linear& product : products) {
            if (!by_data_.contains(product.weight.data)) continue;
            std::shared_ptr<Hessian>& hessian = watched_[product.weight.data];
            const auto same = std::find_if(added.begin(), added.end(), [&](const auto& one) {
                return one.first == product.input.data;
            });
            if (same != added.end()) {
                if (!hessian) {
                    for (const auto& [data, other] : watched_) {
                        if (other.get() == same->second) hessian = other;
                    }
                }
                continue;
            }
            if (!hessian) hessian = std::make_shared<Hessian>(product.weight.k);
            std::vector<float> rows(product.input.rows * product.weight.k);
            const Rows<float> copy(rows.data(), product.input.rows, product.weight.k);
            for (std::size_t row = 0; row < copy.rows; ++row)
                std::copy_n(product.input.row(row), copy.columns, copy.row(row));
            round_to_bf16(copy);
            hessian->add(copy, math_);
            added.emplace_back(product.input.data, hessian.get());
        }
    };
}

Status LayerCalibration::round_watched() {
    for (const PlannedWeight& weight : weights_) {
        if (!weight.calibrated || weight.tensor.role == TensorRole::routed_expert) continue;
        PERCHERON_ASSIGN(const ops::WeightMatrix source, source_of(weight));
        const auto found = watched_.find(source.data);
        const Hessian none(0);
        const Hessian& hessian = found != watched_.end() ? *found->second : none;
        PERCHERON_TRY(round(weight, hessian, factor_of(hessian), hessian.rows()));
    }
    watched_.clear();
    by_data_.clear();
    return {};
}

// ---- experts

std::vector<LayerCalibration::Expert> LayerCalibration::experts_of_plan() const {
    std::vector<Expert> experts(config_.experts);
    for (const PlannedWeight& weight : weights_) {
        std::size_t number = 0;
        std::string matrix;
        if (weight.tensor.role != TensorRole::routed_expert ||
            !split_expert(stem_of(weight.tensor.name), number, matrix)) {
            continue;
        }
        Expert& expert = experts[number];
        (matrix == "gate_proj" ? expert.gate
         : matrix == "up_proj" ? expert.up
                               : expert.down) = &weight;
    }
    return experts;
}

Status LayerCalibration::route(const ops::ExpertsWeights& experts, const RowFile& inputs,
                               std::size_t rows) {
    expert_rows_.assign(config_.experts, {});
    std::vector<float> values(batch_rows * config_.hidden);
    std::vector<std::uint32_t> choices(batch_rows * config_.experts_per_token);
    std::vector<float> weights(choices.size());
    for (std::size_t first = 0; first < rows; first += batch_rows) {
        const std::size_t count = std::min(batch_rows, rows - first);
        const Rows<float> batch(values.data(), count, config_.hidden);
        PERCHERON_TRY(inputs.read(first, batch));
        const Rows<std::uint32_t> chosen(choices.data(), count, config_.experts_per_token);
        math_.primitives().router({experts.router, experts.router_bias, config_.router_scale,
                                   config_.normalise_router_weights, batch, chosen,
                                   Rows<float>(weights.data(), count, config_.experts_per_token)});
        for (std::size_t row = 0; row < count; ++row) {
            for (std::size_t j = 0; j < chosen.columns; ++j)
                expert_rows_[chosen.row(row)[j]].push_back(static_cast<std::uint32_t>(first + row));
        }
    }
    for (const std::vector<std::uint32_t>& list : expert_rows_)
        account_.expert_rows.push_back(list.size());
    return {};
}

Status LayerCalibration::each_batch(const RowFile& inputs, std::span<const std::uint32_t> chosen,
                                    const std::function<void(Rows<const float>)>& body) {
    std::vector<float> values(std::min(batch_rows, chosen.size()) * config_.hidden);
    for (std::size_t first = 0; first < chosen.size(); first += batch_rows) {
        const std::size_t count = std::min(batch_rows, chosen.size() - first);
        const Rows<float> batch(values.data(), count, config_.hidden);
        for (std::size_t row = 0; row < count;) {
            // Neighbours are read together.
            std::size_t run = 1;
            while (row + run < count && chosen[first + row + run] == chosen[first + row] + run)
                ++run;
            PERCHERON_TRY(inputs.read(chosen[first + row], batch.slice(row, run)));
            row += run;
        }
        round_to_bf16(batch);
        body(batch);
    }
    return {};
}

Status LayerCalibration::add_middle_rows(const Expert& expert, const RowFile& inputs,
                                         std::span<const std::uint32_t> chosen, Hessian& hessian) {
    PERCHERON_ASSIGN(const ops::WeightMatrix gate, source_of(*expert.gate));
    PERCHERON_ASSIGN(const ops::WeightMatrix up, source_of(*expert.up));
    std::vector<float> gates(batch_rows * gate.n), ups(batch_rows * up.n);
    return each_batch(inputs, chosen, [&](Rows<const float> rows) {
        const Rows<float> middle(gates.data(), rows.rows, gate.n);
        const Rows<float> second(ups.data(), rows.rows, up.n);
        ops::Linear products[2];
        products[0] = {gate, rows, middle, ops::Arithmetic::standard, ops::NumericClass::prefill};
        products[1] = {up, rows, second, ops::Arithmetic::standard, ops::NumericClass::prefill};
        math_.primitives().linear(products);
        math_.primitives().swiglu({middle, second, config_.swiglu_limit, middle});
        round_to_bf16(middle);
        hessian.add(middle, math_);
    });
}

Status LayerCalibration::round_experts(const ops::ExpertsWeights& experts, const RowFile& inputs,
                                       std::size_t rows,
                                       const std::function<void(const PlannedWeight&)>& done) {
    PERCHERON_TRY(route(experts, inputs, rows));
    const bool all = options_.calibration->all_experts;
    std::vector<std::uint32_t> every(all ? rows : 0);
    std::iota(every.begin(), every.end(), 0u);
    std::optional<Hessian> shared;  // of every row, the same for all experts
    std::optional<HessianFactor> shared_factor;
    const auto add_rows = [&](std::span<const std::uint32_t> chosen, Hessian& hessian) {
        return each_batch(inputs, chosen,
                          [&](Rows<const float> batch) { hessian.add(batch, math_); });
    };
    if (all) {
        shared.emplace(config_.hidden);
        PERCHERON_TRY(add_rows(every, *shared));
        shared_factor = factor_of(*shared);
    }
    const std::vector<Expert> plan = experts_of_plan();
    for (std::size_t number = 0; number < plan.size(); ++number) {
        const Expert& expert = plan[number];
        const std::span<const std::uint32_t> chosen = all ? every : expert_rows_[number];
        const bool enough = chosen.size() >= options_.calibration->least_rows;
        if (expert.gate->calibrated || expert.up->calibrated) {
            Hessian own(all ? 0 : config_.hidden);
            if (!all && enough) PERCHERON_TRY(add_rows(chosen, own));
            const Hessian& hessian = all ? *shared : own;
            const std::optional<HessianFactor> factor = !enough ? std::nullopt
                                                        : all   ? shared_factor
                                                                : factor_of(own);
            for (const PlannedWeight* weight : {expert.gate, expert.up}) {
                if (!weight->calibrated) continue;
                PERCHERON_TRY(round(*weight, hessian, factor, chosen.size()));
                done(*weight);
            }
        }
        if (expert.down->calibrated) {
            Hessian hessian(config_.expert_intermediate);
            if (enough) PERCHERON_TRY(add_middle_rows(expert, inputs, chosen, hessian));
            PERCHERON_TRY(round(*expert.down, hessian, enough ? factor_of(hessian) : std::nullopt,
                                chosen.size()));
            done(*expert.down);
        }
    }
    return {};
}

std::optional<HessianFactor> LayerCalibration::factor_of(const Hessian& hessian) const {
    if (hessian.rows() < options_.calibration->least_rows) return std::nullopt;
    return factorise(hessian, {options_.calibration->damping, group_of(options_.format)},
                     math_.pool());
}

Status LayerCalibration::round(const PlannedWeight& weight, const Hessian& hessian,
                               const std::optional<HessianFactor>& factor, std::size_t rows) {
    const std::string stem = stem_of(weight.tensor.name);
    PERCHERON_ASSIGN(const ops::WeightMatrix source, source_of(weight));
    PERCHERON_ASSIGN(const float global_scale,
                     planned_global_scale(weight, weights_, replaced_.original(), math_.pool()));
    // Also finds what is not finite.
    PERCHERON_ASSIGN(PackedWeight packed, rounder_.nearest(weight, source, global_scale));
    if (factor) {
        std::vector<float> values = dequantised(source, math_.pool());
        const Rows<float> matrix(values.data(), source.n, source.k);
        const PackedWeight nearest = std::move(packed);
        packed = rounder_.calibrated(weight, matrix, *factor, global_scale);
        account_.outputs += hessian.squared_error(matrix, math_);
        std::vector<float> errors(values.size());
        const auto error_of = [&](const PackedWeight& rounded) {
            const ops::WeightMatrix view = rounded.view(weight);
            math_.pool().parallel_for(source.n, [&](std::size_t row, std::size_t) {
                float* const error = errors.data() + row * source.k;
                ops::dequantise_row(view, row, error);
                for (std::size_t i = 0; i < source.k; ++i)
                    error[i] -= matrix.row(row)[i];
            });
            return hessian.squared_error(Rows<const float>(errors.data(), source.n, source.k),
                                         math_);
        };
        account_.error += error_of(packed);
        account_.nearest_error += error_of(nearest);
        ++account_.matrices;
    } else {
        account_.uncovered.push_back(stem + ": " + std::to_string(rows) +
                                     (rows == 1 ? " row" : " rows"));
    }
    const auto place = packed_.insert_or_assign(stem, std::move(packed)).first;
    replaced_.replace(stem, place->second.view(weight));
    return {};
}

}  // namespace percheron::tools
