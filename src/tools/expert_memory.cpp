#include "tools/expert_memory.h"

#include <algorithm>
#include <cstdio>

#include "engine/memory_plan.h"
#include "tools/machine_bench.h"

namespace percheron::tools {
namespace {

// Enough to know the disk's rate, read in a moment.
constexpr Bytes sample = Bytes{256} << 20;

std::size_t layers_with_experts(const model::ModelConfig& config) {
    return static_cast<std::size_t>(std::count(
        config.feed_forward.begin(), config.feed_forward.end(), model::FeedForwardKind::experts));
}

}  // namespace

double ExpertExpectation::tokens_per_second() const {
    return 1 / (bytes_from_disk / disk_rate + bytes_from_memory / memory_rate);
}

std::string ExpertExpectation::text() const {
    char line[320];
    std::snprintf(line, sizeof line,
                  "experts: %zu of %zu in memory; a token reads %s of the others (or less: that is "
                  "with all wanted alike) at %.2f GB/s and %s in memory at %.1f GB/s: %.2f tok/s "
                  "for one stream",
                  in_memory, experts, engine::readable(static_cast<Bytes>(bytes_from_disk)).c_str(),
                  disk_rate / 1e9, engine::readable(static_cast<Bytes>(bytes_from_memory)).c_str(),
                  memory_rate / 1e9, tokens_per_second());
    return line;
}

Result<ExpertMemory> ExpertMemory::plan(ModelSource& source, const ops::Backend& backend,
                                        Bytes wish) {
    if (source.files == nullptr) {
        return Error(ErrorCode::invalid_argument,
                     "--weights-memory needs a model in files; write the made-up one with "
                     "`percheron synth` first");
    }
    if (backend.has_own_memory()) {
        return Error(ErrorCode::unsupported,
                     "--weights-memory is for --device cpu; the weights of " +
                         std::string(backend.name()) + " lie in its own memory");
    }
    const model::ModelConfig& config = source.config;
    const std::size_t layers = layers_with_experts(config);
    const Bytes experts = source.files->expert_bytes(config.layers());
    if (layers == 0 || experts == 0) {
        return Error(ErrorCode::invalid_argument,
                     "--weights-memory: this model has no experts that could stay on the disk");
    }
    const Bytes one = experts / (layers * config.experts);
    const Bytes others = source.weight_bytes - experts;
    const Bytes least = others + (config.experts_per_token + 1) * one * 5 / 4;
    if (wish < least) {
        return Error(ErrorCode::invalid_argument,
                     "--weights-memory " + engine::readable(wish) +
                         " does not hold what every token needs (" + engine::readable(others) +
                         ") and a few experts; name at least " + engine::readable(least));
    }
    ExpertMemory memory;
    memory.for_experts_ = wish - others;
    memory.others_ = others - std::min<Bytes>(others, config.vocabulary * config.hidden * 2);
    memory.wanted_ = static_cast<double>(layers * config.experts_per_token);
    memory.files_ = &source.files->keep_experts_in_files(config.layers());
    return memory;
}

Result<ExpertExpectation> ExpertMemory::start(std::size_t threads) {
    const std::size_t places =
        std::min<std::size_t>(files_->experts(), for_experts_ / files_->place_bytes());
    PERCHERON_TRY(files_->start(places, sample));
    MachineBenchOptions bench;
    bench.threads = threads;
    bench.runs = 2;
    bench.products = false;
    PERCHERON_ASSIGN(const MachineFigures machine, measure_machine(bench));
    ExpertExpectation expected;
    expected.experts = files_->experts();
    expected.in_memory = places;
    const double one = static_cast<double>(files_->place_bytes());
    const double missed = 1 - static_cast<double>(places) / static_cast<double>(files_->experts());
    expected.bytes_from_disk = wanted_ * missed * one;
    expected.bytes_from_memory = static_cast<double>(others_) + wanted_ * one;
    expected.disk_rate = files_->measured_rate();
    expected.memory_rate = machine.read_ceiling();
    return expected;
}

}  // namespace percheron::tools
