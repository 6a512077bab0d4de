// step_bench [CASE] [LAYERS]: whole decode steps of full-size layers with random weights, through
// the backend as the engine calls it: what a step must read over this run's read ceiling, beside
// the median time of a step from host to host.  With LAYERS, a few rows of so many layers only.
#include <chrono>
#include <cstring>
#include <map>
#include <string>

#include "cache/cache_store.h"
#include "cuda/measure.h"
#include "model/network.h"
#include "ops/cuda/cuda_backend.h"

using namespace percheron;
using namespace percheron::bench;
using ops::WeightFormat;

namespace {

template <class T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::printf("%s\n", result.error().message().c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

__device__ std::uint32_t mixed(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// bf16 in (-scale, scale), uniform.
__global__ void fill_bf16(__nv_bfloat16* out, std::size_t count, float scale, std::uint32_t seed) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride)
        out[i] = __float2bfloat16_rn(
            scale *
            (static_cast<float>(mixed(static_cast<std::uint32_t>(i) ^ seed) >> 8) * 0x1p-23f -
             1.0f));
}

// Bytes, all but the NaN codes of e4m3.
__global__ void fill_bytes(std::uint8_t* out, std::size_t count) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride) {
        const auto byte = static_cast<std::uint8_t>(mixed(static_cast<std::uint32_t>(i)) >> 11);
        out[i] = (byte & 0x7f) == 0x7f ? 0x38 : byte;
    }
}

// Pages of fp8 rows: any codes but NaN's, and scales of 2^-7 behind each share's `values` of them.
__global__ void fill_rows(std::uint8_t* out, std::size_t count, std::size_t share,
                          std::size_t values) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride) {
        const auto byte = static_cast<std::uint8_t>(mixed(static_cast<std::uint32_t>(i)) >> 11);
        out[i] = i % share >= values ? 120 : (byte & 0x7f) == 0x7f ? 0x38 : byte;
    }
}

void fill(void* data, std::size_t count, float scale, std::uint32_t seed) {
    fill_bf16<<<1024, 256>>>(static_cast<__nv_bfloat16*>(data), count, scale, seed);
    require(cudaDeviceSynchronize(), "filling");
}

// Tensors cut from random device memory, at another place each; remembers what a step reads.
class DeviceWeights final : public model::WeightSource {
  public:
    explicit DeviceWeights(WeightFormat experts)
        : experts_(experts),
          values_(pool_values),
          bytes_(pool_values),
          scales_(pool_scales),
          wide_scales_(pool_scales),
          fp8_scales_(pool_scales) {
        fill_bytes<<<1024, 256>>>(bytes_.data(), bytes_.size());
        fill(values_.data(), values_.size(), 0.03f, 1);
        fill(scales_.data(), scales_.size(), 0.005f, 2);
        std::vector<float> wide(pool_scales, 2e-4f);
        wide_scales_.upload(wide);
        std::vector<std::uint8_t> fp8(pool_scales, 0x38);  // one
        fp8_scales_.upload(fp8);
    }

    bool has(std::string_view) const override { return true; }

    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override {
        ops::WeightMatrix m;
        m.n = n;
        m.k = k;
        const bool expert = stem.find(".experts.") != std::string_view::npos;
        m.format = expert ? experts_ : WeightFormat::bf16;
        std::size_t start = (next_++ * 7919 * 256) % (pool_values / 8);
        if (m.format == WeightFormat::bf16) {
            if (start + n * k > pool_values) start = 0;
            m.data = values_.data() + start;
        } else {
            m.data = bytes_.data() + start;
            m.scales =
                m.format == WeightFormat::fp8_block ? static_cast<const void*>(wide_scales_.data())
                : m.format == WeightFormat::nvfp4   ? static_cast<const void*>(fp8_scales_.data())
                                                    : static_cast<const void*>(scales_.data());
            m.global_scale = 0.01f;
        }
        if (expert)
            expert_bytes = static_cast<double>(ops::stored_bytes(m)) * 3;
        else if (!stem.ends_with("embed_tokens"))
            trunk_bytes += static_cast<double>(ops::stored_bytes(m));
        return m;
    }

    Status vector(std::string_view name, std::span<float> out) override {
        const bool norm = name.ends_with("norm.weight") || name.ends_with("_scale");
        check::Random random(name.size());
        for (float& value : out)
            value = norm ? 1.0f : 0.01f * random.normal();
        trunk_bytes += static_cast<double>(out.size_bytes());
        return {};
    }

    double trunk_bytes = 0, expert_bytes = 0;

  private:
    static constexpr std::size_t pool_values = std::size_t{1} << 30, pool_scales = 1 << 20;
    WeightFormat experts_;
    check::OnDevice<__nv_bfloat16> values_;
    check::OnDevice<std::uint8_t> bytes_;
    check::OnDevice<__nv_bfloat16> scales_;
    check::OnDevice<float> wide_scales_;
    check::OnDevice<std::uint8_t> fp8_scales_;
    std::size_t next_ = 0;
};

// The released network's layers, the first `layers` of them; shards: what one of so many ranks
// holds of heads, widths and vocabulary.
model::ModelConfig full_config(std::size_t layers, std::size_t shards) {
    model::ModelConfig config;
    config.vocabulary = 154880 / shards;
    config.hidden = 4096;
    config.dense_intermediate = 12288 / shards;
    config.expert_intermediate = 2048 / shards;
    config.attention_heads = 64 / shards;
    config.query_rank = 1536;
    config.latent = 512;
    config.query_key_dim = config.value_dim = 256;
    config.index_heads = 32;
    config.index_dim = 128;
    config.index_topk = 2048;
    config.kda_heads = 64 / shards;
    config.kda_dim = 128;
    config.experts = 288;
    config.experts_per_token = 8;
    config.shared_experts = 1;
    config.router_scale = 2.5f;
    config.context_limit = 1 << 20;
    for (std::size_t i = 0; i < layers; ++i) {
        config.mixers.push_back(i % 4 == 3 ? model::MixerKind::sparse_attention
                                           : model::MixerKind::kda);
        config.feed_forward.push_back(i < 3 ? model::FeedForwardKind::dense
                                            : model::FeedForwardKind::experts);
    }
    return config;
}

struct Case {
    const char* name;
    WeightFormat experts;
    std::size_t layers, shards;
    std::vector<std::pair<int, int>> points;  // rows, context
    // Types of the caches, one after the other over the same weights.
    std::vector<DType> kv_dtypes = {DType::bf16};
};

double ceiling = 0;

void fill_caches(const cache::CacheStore& caches, std::size_t pages) {
    const cache::CacheShape& shape = caches.shape();
    if (shape.sparse_layers == 0) return;
    // The first layer's arenas hold every layer's pages.
    const ops::LatentPages& first = caches.views().latent[0];
    const std::size_t latents = pages * first.latent_page_bytes;
    const std::size_t keys = pages * first.pooled_page_bytes;
    if (shape.kv_dtype == DType::bf16) {
        fill(first.latents, latents / 2, 1.0f, 3);
        fill(first.pooled, keys / 2, 1.0f, 4);
        return;
    }
    fill_rows<<<1024, 256>>>(static_cast<std::uint8_t*>(first.latents), latents,
                             shape.latent_page_bytes(), ops::page_tokens * shape.latent);
    fill_rows<<<1024, 256>>>(static_cast<std::uint8_t*>(first.pooled), keys,
                             shape.pooled_page_bytes(),
                             ops::page_tokens / shape.index_pool * shape.index_dim);
    require(cudaDeviceSynchronize(), "filling");
}

// What a step reads of weights, in bytes.
struct WeightBytes {
    double trunk = 0, expert = 0;
};

void bench_points(const Case& one, const model::ModelConfig& config, ops::Backend& backend,
                  model::Network& network, WeightBytes weights, DType kv_dtype);

void bench_case(const Case& one) {
    const auto start = std::chrono::steady_clock::now();
    const model::ModelConfig config = full_config(one.layers, one.shards);
    auto backend = must(ops::make_cuda_backend({}));
    std::unique_ptr<model::Network> network;
    WeightBytes bytes;
    {
        DeviceWeights weights(one.experts);
        model::NetworkOptions options;
        options.max_rows = 64;
        options.max_logit_rows = 64;
        network = must(model::Network::load(config, weights, *backend, options));
        const Status used = network->use_digests({});
        if (!used.ok()) {
            std::printf("%s\n", used.error().message().c_str());
            std::exit(1);
        }
        bytes = {weights.trunk_bytes, weights.expert_bytes};
    }
    std::size_t free_bytes = 0, total_bytes = 0;
    require(cudaMemGetInfo(&free_bytes, &total_bytes), "memory");
    std::printf("%s: %zu layers, loaded in %.1f s, %.1f GiB of %.1f used\n", one.name, one.layers,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                (total_bytes - free_bytes) / 0x1p30, total_bytes / 0x1p30);
    for (const DType kv_dtype : one.kv_dtypes)
        bench_points(one, config, *backend, *network, bytes, kv_dtype);
}

void bench_points(const Case& one, const model::ModelConfig& config, ops::Backend& backend,
                  model::Network& network, WeightBytes weights, DType kv_dtype) {
    const cache::CacheShape shape = cache::CacheShape::of(config, kv_dtype);
    const auto pages = static_cast<std::uint32_t>((std::size_t{8} << 30) / shape.page_bytes());
    auto caches = must(cache::CacheStore::create(shape, pages, 64, backend));
    for (std::uint32_t slot = 0; slot < 64; ++slot)
        caches->clear_slot(RequestSlot(slot));
    fill_caches(*caches, pages);
    const std::string cached(cache::name_of_kv_dtype(kv_dtype));
    std::printf("  caches in %s: %u pages of %zu bytes a token\n", cached.c_str(), pages,
                static_cast<std::size_t>(shape.bytes_per_token()));

    for (const auto& [rows, context] : one.points) {
        const std::uint32_t pages_each = cache::pages_for(static_cast<std::uint64_t>(context) + 64);
        if (static_cast<std::uint64_t>(pages_each) * rows > pages) {
            std::printf("  %d rows of %d tokens do not fit\n", rows, context);
            continue;
        }
        std::vector<ops::SequenceRows> sequences(rows);
        std::vector<std::vector<PageId>> tables(rows);
        std::vector<TokenId> tokens(rows);
        std::vector<std::uint32_t> logit_rows(rows);
        std::uint32_t page = 0;
        for (int i = 0; i < rows; ++i) {
            for (std::uint32_t p = 0; p < pages_each; ++p)
                tables[i].push_back(PageId(page++));
            sequences[i].first_row = logit_rows[i] = static_cast<std::uint32_t>(i);
            sequences[i].row_count = sequences[i].commit_rows = 1;
            sequences[i].slot = RequestSlot(static_cast<std::uint32_t>(i));
            sequences[i].pages = tables[i];
        }
        // As the engine asks where tokens are the likeliest ones.
        const std::vector<ops::DigestRequest> digests(rows);
        std::vector<double> times;
        constexpr int steps = 43, warm = 3;
        for (int step = 0; step < steps; ++step) {
            for (int i = 0; i < rows; ++i) {
                tokens[i] = TokenId(static_cast<int>((step * 977 + i * 1871) % config.vocabulary));
                sequences[i].first_position = sequences[i].state_position =
                    static_cast<std::uint32_t>(context - steps + step);
            }
            ops::RowBatch batch;
            batch.sequences = sequences;
            batch.tokens = tokens;
            batch.logit_rows = logit_rows;
            batch.digests = digests;
            const auto begin = std::chrono::steady_clock::now();
            must(network.forward(batch, caches->views()));
            const double us =
                std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                    .count();
            if (step >= warm) times.push_back(us);
        }
        std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
        const double median = times[times.size() / 2];
        const auto facts = must(ops::cuda_step_facts(backend));
        double touched = 0;
        for (const std::int32_t layer : facts.touched_experts)
            touched += layer;
        const double per_sequence =
            8.0 * static_cast<double>(shape.kda_layers * shape.state_floats()) +
            static_cast<double>(shape.sparse_layers) *
                (std::min(context, 2051) * (shape.latent_page_bytes() / 64.0) +
                 (context > 2051 ? context * (shape.pooled_page_bytes() / 64.0) : 0.0));
        const double bytes = weights.trunk + touched * weights.expert + rows * per_sequence;
        const double floor = bytes / ceiling / 1e3;
        std::printf(
            "  %-22s %s rows %3d context %7d  %8.1f MB  floor %8.1f us  step %8.1f us  "
            "%5.1f %%  %.1f experts a layer, %zu kernels, %.1f us a layer\n",
            one.name, cached.c_str(), rows, context, bytes / 1e6, floor, median,
            100 * floor / median,
            touched / static_cast<double>(std::max<std::size_t>(1, facts.touched_experts.size())),
            facts.recorded_kernels, median / static_cast<double>(one.layers));
        std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) {
    ceiling = read_ceiling();
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0), "device");
    std::printf("%s, read ceiling %.0f GB/s\n", properties.name, ceiling);
    const std::vector<std::pair<int, int>> all = {{1, 2048},  {1, 8192},   {8, 8192},
                                                  {64, 8192}, {1, 131072}, {1, 524288}};
    const std::vector<std::pair<int, int>> few = {{1, 2048}, {8, 8192}};
    const Case cases[] = {
        {"w4a16", WeightFormat::w4a16, 32, 1, all, {DType::bf16, DType::f8_e4m3}},
        {"w4a16 tp2 shard", WeightFormat::w4a16, 32, 2, few},
        {"fp8", WeightFormat::fp8_block, 15, 1, few},
        {"nvfp4", WeightFormat::nvfp4, 24, 1, few},
    };
    for (Case one : cases) {
        if (argc > 1 && std::strcmp(one.name, argv[1]) != 0) continue;
        if (argc > 2) {
            one.layers = std::strtoul(argv[2], nullptr, 10);
            one.points = {{1, 2048}, {8, 8192}, {64, 8192}};
        }
        bench_case(one);
    }
    return 0;
}
