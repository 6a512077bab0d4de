// A backend that passes every call on to another one.  Whoever watches a network at work (time,
// bytes, choices) overrides the stages it looks at; nothing else of the inner backend is lost.
#pragma once

#include "ops/backend.h"

namespace percheron::ops {

class ForwardingBackend : public Backend {
  public:
    // `inner` must outlive this.
    explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

    std::string_view name() const override { return inner_.name(); }
    Arithmetic arithmetic() const override { return inner_.arithmetic(); }
    DType activation_dtype() const override { return inner_.activation_dtype(); }

    Result<std::unique_ptr<BackendBuffer>> allocate(Bytes bytes,
                                                    std::string_view purpose) override {
        return inner_.allocate(bytes, purpose);
    }
    Result<std::unique_ptr<BackendBuffer>> allocate_host_readable(
        Bytes bytes, std::string_view purpose) override {
        return inner_.allocate_host_readable(bytes, purpose);
    }
    void clear(void* data, Bytes bytes) override { inner_.clear(data, bytes); }
    void copy(void* to, const void* from, Bytes bytes) override { inner_.copy(to, from, bytes); }
    void copy_to_host(void* host, const void* from, Bytes bytes) override {
        inner_.copy_to_host(host, from, bytes);
    }
    void copy_from_host(void* to, const void* host, Bytes bytes) override {
        inner_.copy_from_host(to, host, bytes);
    }
    Result<MachineMemory> memory() const override { return inner_.memory(); }
    bool has_own_memory() const override { return inner_.has_own_memory(); }
    Status check_shape(const NetworkShape& shape, std::size_t rows) const override {
        return inner_.check_shape(shape, rows);
    }
    Status read_from(WeightFiles& files) override { return inner_.read_from(files); }
    Status finish_reading() override { return inner_.finish_reading(); }
    Result<WeightMatrix> place(const WeightMatrix& stored, std::string_view name,
                               WeightUse use) override {
        return inner_.place(stored, name, use);
    }
    Result<const float*> place(std::span<const float> vector, std::string_view name) override {
        return inner_.place(vector, name);
    }
    Result<WeightMatrix> place_latent_heads(const WeightMatrix& stored, const NetworkShape& shape,
                                            std::string_view name) override {
        return inner_.place_latent_heads(stored, shape, name);
    }
    Result<const void*> place_experts(std::span<const FeedForwardWeights> experts,
                                      std::string_view layer) override {
        return inner_.place_experts(experts, layer);
    }
    Bytes working_bytes(const NetworkShape& shape, std::size_t rows,
                        std::size_t logit_rows) const override {
        return inner_.working_bytes(shape, rows, logit_rows);
    }
    Status prepare(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows) override {
        return inner_.prepare(shape, rows, logit_rows);
    }

    Status run(const RowBatch& batch, const std::function<void()>& stages) override {
        return inner_.run(batch, stages);
    }
    void embed(const WeightMatrix& table, const RowBatch& batch, Activations streams) override {
        inner_.embed(table, batch, streams);
    }
    void mhc_turn(const MhcTurn& turn, const RowBatch& batch) override {
        inner_.mhc_turn(turn, batch);
    }
    void kda_mixer(const KdaWeights& weights, const KdaSlots& slots, const RowBatch& batch,
                   Activations x, Activations y) override {
        inner_.kda_mixer(weights, slots, batch, x, y);
    }
    void sparse_mixer(const SparseAttentionWeights& weights, const LatentPages& pages,
                      const RowBatch& batch, Activations x, Activations y) override {
        inner_.sparse_mixer(weights, pages, batch, x, y);
    }
    void dense_ffn(const FeedForwardWeights& weights, const RowBatch& batch, Activations x,
                   Activations y) override {
        inner_.dense_ffn(weights, batch, x, y);
    }
    void moe_ffn(const ExpertsWeights& weights, const RowBatch& batch, Activations x,
                 Activations y) override {
        inner_.moe_ffn(weights, batch, x, y);
    }
    void head(const WeightMatrix& head, const RowBatch& batch, Activations hidden,
              Activations logits) override {
        inner_.head(head, batch, hidden, logits);
    }
    using Backend::vision;
    VisionStages* vision() override { return inner_.vision(); }
    MtpStages* mtp() override { return inner_.mtp(); }
    using Backend::drafter;
    DrafterStages* drafter() override { return inner_.drafter(); }
    LogitDigests* digests() override { return inner_.digests(); }
    void read(const Activations& rows, float* out) override { inner_.read(rows, out); }

  protected:
    Backend& inner_;
};

}  // namespace percheron::ops
