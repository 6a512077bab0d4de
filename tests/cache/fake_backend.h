// A backend that has memory and computes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ops/backend.h"

namespace percheron::cache::testing {

// Memory full of rubbish: nothing may be read before it is written or cleared.
class FakeBackend final : public ops::Backend {
  public:
    std::string_view name() const override { return "fake"; }
    ops::Arithmetic arithmetic() const override { return ops::Arithmetic::standard; }
    DType activation_dtype() const override { return DType::f32; }
    Result<std::unique_ptr<ops::BackendBuffer>> allocate(Bytes bytes, std::string_view) override {
        struct Buffer final : ops::BackendBuffer {
            explicit Buffer(Bytes bytes)
                : words(bytes / 8 + 1, 0xdeadbeefdeadbeefu), bytes(bytes) {}
            void* data() const override { return words.data(); }
            Bytes size() const override { return bytes; }
            mutable std::vector<std::uint64_t> words;
            Bytes bytes;
        };
        return std::unique_ptr<ops::BackendBuffer>(std::make_unique<Buffer>(bytes));
    }
    Result<std::unique_ptr<ops::BackendBuffer>> allocate_host_readable(
        Bytes bytes, std::string_view purpose) override {
        return allocate(bytes, purpose);
    }
    Result<ops::WeightMatrix> place(const ops::WeightMatrix& stored, std::string_view,
                                    ops::WeightUse) override {
        return stored;
    }
    Result<const float*> place(std::span<const float> vector, std::string_view) override {
        return vector.data();
    }
    Bytes working_bytes(const ops::NetworkShape&, std::size_t, std::size_t) const override {
        return 0;
    }
    Status prepare(const ops::NetworkShape&, std::size_t, std::size_t) override { return {}; }
    Status run(const ops::RowBatch&, const std::function<void()>& stages) override {
        stages();
        return {};
    }
    void embed(const ops::WeightMatrix&, const ops::RowBatch&, ops::Activations) override {}
    void mhc_turn(const ops::MhcTurn&, const ops::RowBatch&) override {}
    void kda_mixer(const ops::KdaWeights&, const ops::KdaSlots&, const ops::RowBatch&,
                   ops::Activations, ops::Activations) override {}
    void sparse_mixer(const ops::SparseAttentionWeights&, const ops::LatentPages&,
                      const ops::RowBatch&, ops::Activations, ops::Activations) override {}
    void dense_ffn(const ops::FeedForwardWeights&, const ops::RowBatch&, ops::Activations,
                   ops::Activations) override {}
    void moe_ffn(const ops::ExpertsWeights&, const ops::RowBatch&, ops::Activations,
                 ops::Activations) override {}
    void head(const ops::WeightMatrix&, const ops::RowBatch&, ops::Activations,
              ops::Activations) override {}
    void read(const ops::Activations&, float*) override {}
};

}  // namespace percheron::cache::testing
