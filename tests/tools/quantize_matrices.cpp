// Writes matrices of a model, the rows that reach them and what calibration makes of them, for
// comparing with other implementations of GPTQ on the same layers and data (scripts/check-gptq).
//
// usage: quantize_matrices MODEL TEXTS.jsonl OUT.safetensors TOKENS
//
// For the first expert of every layer: N.weight [n, k], N.rows [R, k] as products read them,
// N.calibrated and N.nearest [n, k], all F32.  The layers before are the model's own.
#include <cstdio>
#include <cstdlib>

#include "checkpoint/safetensors_writer.h"
#include "support/read_whole.h"
#include "tools/quantize_gptq.h"
#include "tools/quantize_layers.h"
#include "tools/quantize_rounder.h"

namespace percheron::tools {
namespace {

using checkpoint::TensorHeader;

struct Output {
    std::vector<TensorHeader> headers;
    std::vector<std::vector<float>> values;

    void add(const std::string& name, std::size_t rows, std::size_t columns,
             std::vector<float> content) {
        headers.push_back({name, DType::f32, {rows, columns}});
        values.push_back(std::move(content));
    }
};

Status add_matrix(const std::string& name, const ops::WeightMatrix& source,
                  const std::vector<float>& rows, CalibrationMath& math, Output& output) {
    const std::size_t k = source.k;
    Hessian hessian(k);
    hessian.add(Rows<const float>(rows.data(), rows.size() / k, k), math);
    const auto factor = factorise(hessian, {}, math.pool());
    if (!factor) return Error(ErrorCode::corrupt, name + ": no usable rows");
    PlannedWeight weight;
    weight.tensor.name = name + ".weight";
    weight.tensor.shape = {source.n, k};
    weight.format = ops::WeightFormat::w4a16;
    weight.outputs = {{"packed", DType::i32, {source.n, k / 8}},
                      {"scale", DType::bf16, {source.n, k / 128}},
                      {"shape", DType::i64, {2}}};
    std::vector<float> values = dequantised(source, math.pool());
    MatrixRounder rounder(math.pool());
    const PackedWeight calibrated =
        rounder.calibrated(weight, Rows<const float>(values.data(), source.n, k), *factor, 1);
    PERCHERON_ASSIGN(const PackedWeight nearest, rounder.nearest(weight, source, 1));
    output.add(name + ".weight", source.n, k, std::move(values));
    output.add(name + ".rows", rows.size() / k, k, rows);
    output.add(name + ".calibrated", source.n, k,
               dequantised(calibrated.view(weight), math.pool()));
    output.add(name + ".nearest", source.n, k, dequantised(nearest.view(weight), math.pool()));
    return {};
}

Status run(const std::filesystem::path& folder, const std::filesystem::path& texts_path,
           const std::filesystem::path& out, std::size_t tokens) {
    PERCHERON_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::open(folder));
    const model::ModelConfig& config = checkpoint->config();
    CalibrationLimits limits;
    limits.tokens = tokens;
    PERCHERON_ASSIGN(const auto texts,
                     read_calibration(texts_path, folder, config.vocabulary, limits));
    PERCHERON_ASSIGN(const auto math, CalibrationMath::create(0));
    ReplacedWeights weights(*checkpoint);
    const std::filesystem::path state = out.string() + ".state";
    std::filesystem::create_directories(state);
    LayeredNetwork network(config, weights, texts, {state}, 0);
    PERCHERON_TRY(network.embed());
    Output output;
    for (std::size_t layer = 0; layer < config.layers(); ++layer) {
        PERCHERON_TRY(network.attend(layer, {}));
        if (const ops::ExpertsWeights* experts = network.experts()) {
            // Routed rows of expert 0.
            const std::size_t count = network.input_rows();
            std::vector<float> inputs(count * config.hidden), chosen_rows;
            PERCHERON_TRY(network.inputs().read(0, {inputs.data(), count, config.hidden}));
            std::vector<std::uint32_t> chosen(count * config.experts_per_token);
            std::vector<float> shares(chosen.size());
            math->primitives().router(
                {experts->router, experts->router_bias, config.router_scale,
                 config.normalise_router_weights,
                 Rows<const float>(inputs.data(), count, config.hidden),
                 Rows<std::uint32_t>(chosen.data(), count, config.experts_per_token),
                 Rows<float>(shares.data(), count, config.experts_per_token)});
            for (std::size_t i = 0; i < chosen.size(); ++i) {
                if (chosen[i] != 0) continue;
                const float* const row =
                    inputs.data() + i / config.experts_per_token * config.hidden;
                for (std::size_t j = 0; j < config.hidden; ++j)
                    chosen_rows.push_back(rounded_to_bf16(row[j]));
            }
            const std::size_t routed = chosen_rows.size() / config.hidden;
            const ops::FeedForwardWeights& expert = experts->experts[0];
            const Rows<const float> input(chosen_rows.data(), routed, config.hidden);
            std::vector<float> gates(routed * expert.gate.n), ups(routed * expert.up.n);
            const Rows<float> gate(gates.data(), routed, expert.gate.n);
            const Rows<float> up(ups.data(), routed, expert.up.n);
            const ops::Linear products[] = {{expert.gate, input, gate}, {expert.up, input, up}};
            math->primitives().linear(products);
            math->primitives().swiglu({gate, up, config.swiglu_limit, gate});
            for (float& value : gates)
                value = rounded_to_bf16(value);
            const std::string name = std::to_string(layer) + ".";
            PERCHERON_TRY(add_matrix(name + "gate", expert.gate, chosen_rows, *math, output));
            PERCHERON_TRY(add_matrix(name + "up", expert.up, chosen_rows, *math, output));
            PERCHERON_TRY(add_matrix(name + "down", expert.down, gates, *math, output));
        }
        PERCHERON_TRY(network.feed_forward({}, true));
        network.leave();
        std::filesystem::remove(LayerFiles{state}.streams(layer));
    }
    std::filesystem::remove_all(state);
    PERCHERON_ASSIGN(auto writer, checkpoint::SafetensorsWriter::create(out, output.headers));
    for (std::size_t i = 0; i < output.values.size(); ++i) {
        PERCHERON_TRY(
            writer.write(output.headers[i].name, std::as_bytes(std::span(output.values[i]))));
    }
    return writer.finish();
}

}  // namespace
}  // namespace percheron::tools

int main(int count, char** arguments) {
    std::size_t tokens = 0;
    if (count != 5 || !percheron::tests::read_whole(arguments[4], std::size_t{1}, tokens)) {
        std::fprintf(stderr, "usage: %s MODEL TEXTS.jsonl OUT.safetensors TOKENS\n", arguments[0]);
        return 2;
    }
    const auto done = percheron::tools::run(arguments[1], arguments[2], arguments[3], tokens);
    if (!done.ok()) std::fprintf(stderr, "%s\n", done.error().message().c_str());
    return done.ok() ? 0 : 1;
}
