// How large the caches of a network are: the one place where bytes per token and per sequence come
// from.  Memory plan, admission and the arenas all use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "percheron/types.h"

#include "core/dtype.h"
#include "core/status.h"
#include "model/config.h"
#include "ops/batch.h"

namespace percheron::cache {

struct CacheShape {
    // Per position, paged.
    std::size_t sparse_layers = 0;
    std::size_t latent = 0;      // numbers a token and layer
    std::size_t index_dim = 0;   // numbers a pooled key
    std::size_t index_pool = 4;  // tokens a pooled key
    DType kv_dtype = DType::bf16;

    // Per sequence, by slot.
    std::size_t kda_layers = 0;
    std::size_t kda_heads = 0;
    std::size_t kda_dim = 0;
    std::uint32_t ring = 4;       // positions of conv and kept rows (ops::KdaSlots)
    std::uint32_t tail_ring = 4;  // positions of index tails (ops::LatentPages)

    // Per checkpoint, beside the KDA states.
    std::uint32_t conv_history = 3;  // conv rows that the position behind it reads

    // `uncommitted_rows`: the most rows a sequence can have in a step without committing them all
    // (a verification round and the rows pending from the one before); 0 without speculation.
    // `mtp`: a further sparse layer, the MTP layer's, stands behind the trunk's.
    static CacheShape of(const model::ModelConfig& config, DType kv_dtype,
                         std::uint32_t uncommitted_rows = 0, bool mtp = false);

    // One layer's share of one page.
    Bytes latent_page_bytes() const;
    Bytes pooled_page_bytes() const;
    // One layer's share of one slot, in floats; rounded up so that every part starts on a cache
    // line.
    std::size_t state_floats() const;
    std::size_t conv_floats() const;
    std::size_t kept_floats() const;
    std::size_t tail_floats() const;

    Bytes page_bytes() const;  // of one page id over all layers
    Bytes slot_bytes() const;  // of one request slot over all layers
    // One checkpoint's parts, in floats: all states, all conv rows [KDA layer][history][q | k | v].
    std::size_t checkpoint_state_floats() const { return kda_layers * state_floats(); }
    std::size_t checkpoint_conv_floats() const;
    Bytes checkpoint_bytes() const;
    std::size_t conv_row_floats() const { return 3 * kda_heads * kda_dim; }
    Bytes bytes_per_token() const { return page_bytes() / ops::page_tokens; }
    Bytes bytes_per_sequence() const { return slot_bytes(); }
};

// Pages that hold positions [0, tokens).
constexpr std::uint32_t pages_for(std::uint64_t tokens) {
    return static_cast<std::uint32_t>((tokens + ops::page_tokens - 1) / ops::page_tokens);
}

// `--kv-dtype`, of latents and pooled index keys: "auto" is bf16, or f32 under fp32 arithmetic; a
// name is that type or an error.  fp8 is f8_e4m3 with a scale a row (ops/stored_rows.h).
// Errors: invalid_argument (no such name), unsupported (bf16 and fp8 under fp32 arithmetic, f32
// under standard).
Result<DType> kv_dtype_of(std::string_view name, ops::Arithmetic arithmetic);
// The name of such a type, as the flag has it.
std::string_view name_of_kv_dtype(DType dtype);

}  // namespace percheron::cache
