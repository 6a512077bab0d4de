// The shape of a DFlash2 (or plain DFlash) drafter, as plain numbers.  Parsed from its folder by
// src/checkpoint; field names are the checkpoint's in full words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "percheron/types.h"

namespace percheron::model {

struct Dflash2Config {
    std::size_t vocabulary = 0;  // the trunk's
    std::size_t hidden = 0;      // the trunk's
    std::size_t intermediate = 0;
    std::size_t heads = 0;
    std::size_t kv_heads = 0;
    std::size_t head_dim = 0;
    // One a layer: how far a place sees (|distance| < window); 0: everything.
    std::vector<std::uint32_t> windows;
    // The trunk's layers whose outputs it reads, in the order of `fc`'s inputs.
    std::vector<std::size_t> target_layers;
    std::size_t block = 0;  // the newest token and the places to be named

    std::size_t conv_taps = 0;  // of the convolution along a block; 0: none (plain DFlash)
    std::size_t conv_width = 1;
    std::size_t selector_rank = 0;  // of the walk over candidates; 0: none (plain DFlash)
    std::size_t selector_top = 0;

    TokenId mask_token{};
    std::vector<float> mask =
        {};  // stands at places to be named; empty: the mask token's embedding
    bool own_embedding = false;
    bool own_head = false;

    float rms_norm_eps = 1e-5f;
    float rope_theta = 10000.0f;
    float embedding_scale = 1.0f;
    float logit_scale = 1.0f;
    float logit_cap = 0.0f;         // logits become cap tanh(logits / cap); 0: they do not
    std::size_t context_limit = 0;  // positions it was made for

    std::size_t layers() const { return windows.size(); }
    // Positions of the context that any layer sees from the place behind them; 0: all.
    std::uint32_t window() const {
        const bool all = std::find(windows.begin(), windows.end(), 0u) != windows.end();
        return all ? 0 : *std::max_element(windows.begin(), windows.end());
    }
};

}  // namespace percheron::model
