#include "ops/cuda/cuda_backend.h"

#include <algorithm>
#include <array>

#include "ops/cuda/cuda_stages.h"
#include "ops/cuda/latent_attention.h"
#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_turn.h"

namespace percheron::ops {
namespace cuda {
namespace {

constexpr std::size_t most_step_rows = 512;  // the router's and the experts' grouping's limit
constexpr std::size_t most_prompt_rows = 8192;

template <class Memory>
class Buffer final : public BackendBuffer {
  public:
    explicit Buffer(Memory memory) : memory_(std::move(memory)) {}
    void* data() const override { return memory_.data(); }
    Bytes size() const override { return memory_.size(); }

  private:
    Memory memory_;
};

// Page tables of a step: room for a few sequences of the full context, or one page a row.
std::size_t page_room(const NetworkShape& shape, std::size_t rows) {
    return std::max(4 * (shape.context_limit / page_tokens + 1), 16 * rows);
}

// Logits, and behind them the rows that they are wanted of.
Bytes head_bytes(const NetworkShape& shape, std::size_t rows) {
    return rows_behind_logits(rows, shape.vocabulary) * sizeof(float) +
           rows * shape.hidden * sizeof(__nv_bfloat16);
}

// What a row's turn in a prompt hands from one kernel to the next.
std::size_t turn_bytes(const NetworkShape& shape) {
    return prompt_turn_floats(static_cast<int>(shape.hidden)) * sizeof(float);
}

}  // namespace

CudaBackend::CudaBackend(int device, int multiprocessors, cudaStream_t stream, SideStream side,
                         bool graphs)
    : device_(device),
      name_("cuda:" + std::to_string(device)),
      stream_(stream),
      side_(side),
      use_graphs_(graphs),
      wide_products_(has_prefill_kernels()),
      context_{stream, multiprocessors, true},
      weights_(stream),
      digests_(device, stream),
      vision_(
          context_, [this] { return is_ready(); }, [this](const Status& status) { note(status); }),
      drafter_(
          context_, [this] { return is_ready(); }, [this](const Status& status) { note(status); }) {
}

bool CudaBackend::is_ready() {
    note(use_device());
    return !failed();
}

CudaBackend::~CudaBackend() {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    graphs_.clear();
    cudaEventDestroy(side_.leaves);
    cudaEventDestroy(side_.returns);
    cudaStreamDestroy(side_.stream);
    cudaStreamDestroy(stream_);
}

Status CudaBackend::use_device() const {
    return check(cudaSetDevice(device_), "choosing " + name_);
}

// ---- memory

Result<std::unique_ptr<BackendBuffer>> CudaBackend::allocate(Bytes bytes,
                                                             std::string_view purpose) {
    PERCHERON_TRY(use_device());
    PERCHERON_ASSIGN(DeviceMemory memory, DeviceMemory::allocate(bytes, purpose));
    return std::unique_ptr<BackendBuffer>(
        std::make_unique<Buffer<DeviceMemory>>(std::move(memory)));
}

Result<std::unique_ptr<BackendBuffer>> CudaBackend::allocate_host_readable(
    Bytes bytes, std::string_view purpose) {
    PERCHERON_TRY(use_device());
    PERCHERON_ASSIGN(PinnedMemory memory, PinnedMemory::allocate(bytes, purpose));
    return std::unique_ptr<BackendBuffer>(
        std::make_unique<Buffer<PinnedMemory>>(std::move(memory)));
}

void CudaBackend::clear(void* data, Bytes bytes) {
    note(use_device());
    note(check(cudaMemsetAsync(data, 0, bytes, stream_), "clearing memory on " + name_));
}

void CudaBackend::copy(void* to, const void* from, Bytes bytes) {
    note(use_device());
    note(check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
               "copying memory on " + name_));
}

void CudaBackend::copy_to_host(void* host, const void* from, Bytes bytes) {
    note(use_device());
    note(check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_),
               "copying memory from " + name_));
    note(check(cudaStreamSynchronize(stream_), "copying memory from " + name_));
}

void CudaBackend::copy_from_host(void* to, const void* host, Bytes bytes) {
    note(use_device());
    note(check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_),
               "copying memory to " + name_));
    note(check(cudaStreamSynchronize(stream_), "copying memory to " + name_));
}

Result<MachineMemory> CudaBackend::memory() const {
    PERCHERON_TRY(use_device());
    std::size_t available = 0, total = 0;
    PERCHERON_TRY(check(cudaMemGetInfo(&available, &total), "asking for the memory of " + name_));
    return MachineMemory{total, available};
}

Status CudaBackend::check_shape(const NetworkShape& shape, std::size_t rows) const {
    const auto unsuited = [&](const std::string& what, std::size_t is, const std::string& needed) {
        return Error(ErrorCode::unsupported, "The CUDA kernels need " + what + " to be " + needed +
                                                 ", this network's is " + std::to_string(is) +
                                                 "; use --device cpu.");
    };
    struct Exact {
        const char* what;
        std::size_t is, needed;
    };
    for (const Exact& one : {Exact{"the number of residual streams", shape.streams, 4},
                             Exact{"the KDA head dimension", shape.kda_dim, 128},
                             Exact{"the KDA convolution's taps", shape.kda_conv, 4},
                             Exact{"the latent dimension", shape.latent, attention_latent},
                             Exact{"the index key dimension", shape.index_dim, 128},
                             Exact{"the tokens of a pool", shape.index_pool, 4}}) {
        if (one.is != one.needed) return unsuited(one.what, one.is, std::to_string(one.needed));
    }
    for (const Exact& one : {Exact{"the hidden size", shape.hidden, 128},
                             Exact{"the query rank", shape.query_rank, 128},
                             Exact{"the query and key dimension", shape.query_key_dim, 128},
                             Exact{"the value dimension", shape.value_dim, 128},
                             Exact{"the dense feed-forward's width", shape.dense_intermediate, 128},
                             Exact{"an expert's width", shape.expert_intermediate, 128},
                             Exact{"the shared expert's width", shape.shared_intermediate, 128},
                             Exact{"the selected tokens", shape.index_topk, 4}}) {
        if (one.is % one.needed != 0)
            return unsuited(one.what, one.is, "a multiple of " + std::to_string(one.needed));
    }
    if (shape.index_heads > 32) return unsuited("the index heads", shape.index_heads, "at most 32");
    if (shape.experts > 512) return unsuited("the experts", shape.experts, "at most 512");
    if (shape.experts_per_token > 16)
        return unsuited("the experts of a token", shape.experts_per_token, "at most 16");
    const std::size_t most = wide_products_ ? most_prompt_rows : most_step_rows;
    if (rows > most)
        return Error(ErrorCode::unsupported, "A step on " + name_ + " has at most " +
                                                 std::to_string(most) + " rows, not " +
                                                 std::to_string(rows) + ".");
    return {};
}

Status CudaBackend::read_from(WeightFiles& files) {
    PERCHERON_TRY(use_device());
    return weights_.read_from(device_, files);
}

Status CudaBackend::finish_reading() {
    PERCHERON_TRY(use_device());
    return weights_.finish_reading();
}

Result<WeightMatrix> CudaBackend::place(const WeightMatrix& stored, std::string_view name,
                                        WeightUse use) {
    PERCHERON_TRY(use_device());
    if (stored.input_scale != 0) {
        return Error(ErrorCode::unsupported,
                     std::string(name) + ": no kernel of this device rounds inputs to FP4; leave " +
                         "--fp4-activations out, or compute with --device cpu");
    }
    return use == WeightUse::rows ? weights_.keep_rows(stored, name) : weights_.pack(stored, name);
}

Result<const float*> CudaBackend::place(std::span<const float> vector, std::string_view name) {
    PERCHERON_TRY(use_device());
    return weights_.vector(vector, name);
}

Result<WeightMatrix> CudaBackend::place_latent_heads(const WeightMatrix& stored,
                                                     const NetworkShape& shape,
                                                     std::string_view name) {
    PERCHERON_TRY(use_device());
    return weights_.latent_heads(stored, shape, name);
}

Result<const void*> CudaBackend::place_experts(std::span<const FeedForwardWeights> experts,
                                               std::string_view layer) {
    PERCHERON_TRY(use_device());
    PERCHERON_ASSIGN(const ExpertTable* const table, weights_.experts(experts, layer));
    raises_rows_ |= table->gate_format == WeightFormat::w4a16;
    return static_cast<const void*>(table);
}

Bytes CudaBackend::working_bytes(const NetworkShape& shape, std::size_t rows,
                                 std::size_t logit_rows) const {
    return stage_scratch_bytes(shape, rows) +
           rows * (row_parts + 2) * shape.hidden * sizeof(__nv_bfloat16) +
           rows * turn_bytes(shape) + head_bytes(shape, logit_rows) +
           CudaDigests::bytes(logit_rows, shape.vocabulary) +
           StepBatch::bytes(rows, page_room(shape, rows)) + rows * sizeof(std::uint32_t);
}

Status CudaBackend::prepare(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows) {
    PERCHERON_TRY(use_device());
    PERCHERON_TRY(check(cudaStreamSynchronize(stream_), "placing the weights"));
    weights_.release_staging();
    shape_ = shape;
    most_rows_ = rows;
    PERCHERON_ASSIGN(scratch_memory_,
                     DeviceMemory::allocate(stage_scratch_bytes(shape, rows), "the stages"));
    scratch_.use(scratch_memory_.data());
    PERCHERON_ASSIGN(parts_memory_, DeviceMemory::allocate(rows * (row_parts + 1) * shape.hidden *
                                                               sizeof(__nv_bfloat16),
                                                           "the stages' inputs"));
    PERCHERON_ASSIGN(ordered_memory_,
                     DeviceMemory::allocate(rows * shape.hidden * sizeof(__nv_bfloat16),
                                            "the products' inputs"));
    PERCHERON_ASSIGN(turn_memory_, DeviceMemory::allocate(rows * turn_bytes(shape),
                                                          "a prompt's hyper-connections"));
    PERCHERON_ASSIGN(logits_memory_,
                     DeviceMemory::allocate(head_bytes(shape, logit_rows), "logits"));
    PERCHERON_TRY(digests_.reserve(logit_rows, shape.vocabulary));
    const Bytes row_list = rows * sizeof(std::uint32_t);
    PERCHERON_ASSIGN(hidden_rows_, DeviceMemory::allocate(row_list, "an MTP step's rows"));
    PERCHERON_ASSIGN(hidden_rows_host_, PinnedMemory::allocate(row_list, "an MTP step's rows"));
    return batch_.reserve(rows, page_room(shape, rows));
}

void CudaBackend::read(const Activations& rows, float* out) {
    // Nothing is under way: run() has returned.  An error shows in the next step.
    note(use_device());
    note(check(cudaMemcpyAsync(out, rows.data, rows.rows * rows.columns * sizeof(float),
                               cudaMemcpyDeviceToHost, stream_),
               "reading rows from " + name_));
    note(check(cudaStreamSynchronize(stream_), "reading rows from " + name_));
}

Result<CudaStepFacts> CudaBackend::facts() const {
    PERCHERON_TRY(use_device());
    CudaStepFacts facts;
    facts.recorded_kernels = graphs_.latest_kernels();
    for (const auto& table : weights_.tables()) {
        std::int32_t touched = 0;
        PERCHERON_TRY(
            check(cudaMemcpy(&touched, table->touched, sizeof touched, cudaMemcpyDeviceToHost),
                  "reading the experts' count"));
        facts.touched_experts.push_back(touched);
    }
    return facts;
}

// ---- a step

void CudaBackend::note(const Status& status) {
    if (!status.ok() && !error_) error_ = status.error();
}

std::uint64_t CudaBackend::fingerprint_of(const RowBatch& batch,
                                          const std::function<void()>& stages) {
    Fingerprint fingerprint;
    fingerprint.add(batch.rows());
    fingerprint.add(batch.sequences.size());
    fingerprint_ = &fingerprint;
    stages();
    fingerprint_ = nullptr;
    return fingerprint.value();
}

Status CudaBackend::launch_all(const RowBatch&, const std::function<void()>& stages) {
    parts_from_ = nullptr;
    pairs_.reset();
    latest_router_ = nullptr;
    stages();
    settle_pairs();
    if (error_) return *error_;
    return {};
}

Result<cudaGraphExec_t> CudaBackend::record(std::uint64_t fingerprint, const RowBatch& batch,
                                            const std::function<void()>& stages) {
    PERCHERON_TRY(check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                        "recording a step"));
    const Status launched = launch_all(batch, stages);
    cudaGraph_t graph = nullptr;
    const Status ended = check(cudaStreamEndCapture(stream_, &graph), "recording a step");
    if (!launched.ok()) return launched.error();
    if (!ended.ok()) return ended.error();
    return graphs_.add(fingerprint, graph);
}

Status CudaBackend::run(const RowBatch& batch, const std::function<void()>& stages) {
    PERCHERON_TRY(use_device());
    if (error_) return *error_;  // of clear() or read(), or of a step before: the context is lost
    const auto moved = batch_.upload(batch, stream_);
    if (!moved.ok()) return moved.error();
    if (*moved) graphs_.clear();
    if (batch_.furthest() > shape_.context_limit) {
        return Error(ErrorCode::invalid_argument,
                     "A sequence of " + std::to_string(batch_.furthest()) +
                         " tokens is longer than the network's context of " +
                         std::to_string(shape_.context_limit) + ".");
    }
    prompt_ = wide_products_ && batch.numeric_class == NumericClass::prefill;
    // A prompt's steps come in too many shapes, and embeddings from outside come from other places
    // every time; a drafter's passes are no rows of the batch.
    const bool may_replay = use_graphs_ && batch.numeric_class == NumericClass::decode &&
                            batch.overrides.empty() && !batch.sequences.empty();
    if (may_replay) {
        const std::uint64_t fingerprint = fingerprint_of(batch, stages);
        cudaGraphExec_t graph = graphs_.find(fingerprint);
        if (graph == nullptr && graphs_.seen(fingerprint)) {
            PERCHERON_ASSIGN(graph, record(fingerprint, batch, stages));
        }
        if (graph != nullptr) {
            note(check(cudaGraphLaunch(graph, stream_), "replaying a step on " + name_));
        } else {
            note(launch_all(batch, stages));
        }
    } else {
        note(launch_all(batch, stages));
    }
    note(check(cudaStreamSynchronize(stream_), "computing a step on " + name_));
    if (error_) return *error_;
    return {};
}

}  // namespace cuda

int cuda_device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<CudaStepFacts> cuda_step_facts(const Backend& backend) {
    const auto* const cuda = dynamic_cast<const cuda::CudaBackend*>(&backend);
    if (cuda == nullptr) {
        return Error(ErrorCode::invalid_argument,
                     std::string(backend.name()) + " is no CUDA backend.");
    }
    return cuda->facts();
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaBackendOptions& options) {
    const int count = cuda_device_count();
    if (options.device < 0 || options.device >= count) {
        return Error(ErrorCode::not_found,
                     "There is no device cuda:" + std::to_string(options.device) +
                         ": the driver shows " + std::to_string(count) + " CUDA device" +
                         (count == 1 ? "" : "s") + "; use --device cpu.");
    }
    PERCHERON_TRY(cuda::check(cudaSetDevice(options.device), "choosing the CUDA device"));
    cudaDeviceProp properties;
    PERCHERON_TRY(cuda::check(cudaGetDeviceProperties(&properties, options.device),
                              "asking for the CUDA device's properties"));
    if (properties.major < 9) {
        return Error(ErrorCode::unsupported,
                     std::string(properties.name) + " has compute capability " +
                         std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                         "; the CUDA backend needs 9.0 or later; use --device cpu.");
    }
    PERCHERON_TRY(cuda::check_code(properties.name));
    int last = 0, first = 0;
    PERCHERON_TRY(cuda::check(cudaDeviceGetStreamPriorityRange(&last, &first),
                              "asking for the order of CUDA streams"));
    const int priority = options.goes_first ? first : last;
    cudaStream_t stream = nullptr;
    cuda::SideStream side;
    for (cudaStream_t* const one : {&stream, &side.stream}) {
        PERCHERON_TRY(
            cuda::check(cudaStreamCreateWithPriority(one, cudaStreamNonBlocking, priority),
                        "creating a CUDA stream"));
    }
    for (cudaEvent_t* const event : {&side.leaves, &side.returns}) {
        PERCHERON_TRY(cuda::check(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                                  "creating a CUDA event"));
    }
    return std::unique_ptr<Backend>(std::make_unique<cuda::CudaBackend>(
        options.device, properties.multiProcessorCount, stream, side, options.graphs));
}

}  // namespace percheron::ops
