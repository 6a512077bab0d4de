// Writes every matrix of a model as the values the engine computes from, for comparing with other
// readers of its format (scripts/check-formats).
//
// usage: dequantised_weights MODEL OUT.safetensors
#include <cstdio>
#include <cstdlib>

#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"

namespace percheron::checkpoint {
namespace {

Status run(const std::filesystem::path& folder, const std::filesystem::path& out) {
    PERCHERON_ASSIGN(const auto model, Checkpoint::open(folder));
    const model::ModelConfig& config = model->config();
    std::vector<ExpectedTensor> expected = outer_tensors(config);
    const auto append = [&expected](std::vector<ExpectedTensor> more) {
        expected.insert(expected.end(), more.begin(), more.end());
    };
    for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i)
        append(layer_tensors(config, i));
    if (config.has_vision) append(vision_tensors(config.vision));
    std::erase_if(expected,
                  [](const ExpectedTensor& tensor) { return tensor.role == TensorRole::plain; });
    std::vector<TensorHeader> headers;
    for (const ExpectedTensor& tensor : expected)
        headers.push_back({stem_of(tensor.name) + ".weight", DType::f32, tensor.shape});
    PERCHERON_ASSIGN(auto writer, SafetensorsWriter::create(out, headers));
    std::vector<float> values;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const std::size_t n = expected[i].shape[0];
        const std::size_t k = expected[i].shape[1];
        PERCHERON_ASSIGN(const ops::WeightMatrix matrix,
                         model->matrix(stem_of(expected[i].name), n, k));
        values.resize(n * k);
        for (std::size_t row = 0; row < n; ++row)
            ops::dequantise_row(matrix, row, values.data() + row * k);
        PERCHERON_TRY(writer.write(headers[i].name, std::as_bytes(std::span(values))));
    }
    return writer.finish();
}

}  // namespace
}  // namespace percheron::checkpoint

int main(int count, char** words) {
    if (count != 3) {
        std::fprintf(stderr, "usage: dequantised_weights MODEL OUT.safetensors\n");
        return 2;
    }
    const percheron::Status done = percheron::checkpoint::run(words[1], words[2]);
    if (!done.ok()) std::fprintf(stderr, "%s\n", done.error().message().c_str());
    return done.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
