#include "ops/cpu/cpu_backend.h"

#include "core/thread_pool.h"
#include "ops/composed_backend.h"
#include "ops/cpu/cpu_primitives.h"
#include "ops/cpu/levels.h"

namespace percheron::ops {
namespace {

class CpuBackend final : public ComposedBackend {
  public:
    CpuBackend(Arithmetic arithmetic, std::unique_ptr<ThreadPool> pool,
               std::unique_ptr<cpu::CpuPrimitives> primitives)
        : ComposedBackend("cpu", arithmetic, std::move(primitives)), pool_(std::move(pool)) {}

    void mhc_turn(const MhcTurn& turn, const RowBatch& batch) override {
        if (!static_cast<cpu::CpuPrimitives&>(primitives()).mhc_turn(turn, shape()))
            ComposedBackend::mhc_turn(turn, batch);
    }

    void kda_mixer(const KdaWeights& weights, const KdaSlots& slots, const RowBatch& batch,
                   Activations x, Activations y) override {
        static_cast<cpu::CpuPrimitives&>(primitives()).fetch_slots(slots, batch, shape());
        ComposedBackend::kda_mixer(weights, slots, batch, x, y);
    }

  private:
    std::unique_ptr<ThreadPool> pool_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options) {
    PERCHERON_ASSIGN(const cpu::Kernels* const kernels, cpu::choose_level(options.simd));
    auto pool = std::make_unique<ThreadPool>(ThreadPoolOptions{.threads = options.threads});
    auto primitives = std::make_unique<cpu::CpuPrimitives>(*kernels, *pool);
    return std::unique_ptr<Backend>(
        std::make_unique<CpuBackend>(options.arithmetic, std::move(pool), std::move(primitives)));
}

}  // namespace percheron::ops
