// What a block drafter's layers compute beside products and norms: rotated heads, attention of a
// block over the context and itself, and a convolution along the block.
//
// A drafter keeps, for every position of the text so far, a key and a value a layer (its context);
// a block is the newest token and the places behind it, whose keys and values are not kept.
//
// rope_angles:     out[r] = [cos a_0 .. cos a_(d/2-1) | sin a_0 .. sin a_(d/2-1)],
//                  a_j = position_r theta^(-2j/d)
// rotate_heads:    per head of d values, n = RMS(in; norm, eps), then halves are turned together:
//                    out_j       = n_j cos_j - n_(j+d/2) sin_j
//                    out_(j+d/2) = n_(j+d/2) cos_j + n_j sin_j                       j < d/2
// store_context:   writes keys and values of rows to their positions' places
// block_attention: a row at position t of a block that begins at p, head h of kv head h / (H / G),
//                    out_h = sum_s softmax_s(q_h . k_s d^-1/2) v_s
//                  over the context's positions s < p and all rows s of the block, of which those
//                  with |t - s| < window are seen (0: all)
// block_conv:      z_t of a block's rows, group c / width of channel c,
//                    out_t[c] (+)= sum_tap (base[tap, c] + gates_t[tap, group(c)]) z_(t-tap)[c]
//                  rows before the block's first are zero.
//
// Shapes:   positions [R]; angles [R, d]; heads' rows [R, heads * d]; block rows of keys and values
//           [R, G * d]; base [taps, D]; gates [R, taps * D / width]; context as ContextPages says.
// Numerics: angles in double, rounded to float.  Keys and values of the context are rounded to the
//           pages' type; under `standard` queries and the block's keys and values to bf16.  The
//           rest is fp32 (an oracle may work wider).  A row's bits depend on its block, its
//           context's values and its position alone.
// Effects:  rotate_heads may write in place; block_conv adds to its output if `add` is set;
//           nothing else overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "percheron/types.h"

#include "core/dtype.h"
#include "core/views.h"
#include "ops/batch.h"

namespace percheron::ops {

// One layer's share of a drafter's cache: [page][keys, values][kv head][64][dim].
struct ContextPages {
    void* data = nullptr;
    DType dtype = DType::bf16;  // or f32, f8_e4m3
    Bytes page_bytes = 0;       // from page to page
    std::size_t heads = 0;
    std::size_t dim = 0;

    // Of a head's first value in a page, counted in values from `data`'s page.
    std::size_t keys_at(std::size_t head) const { return head * page_tokens * dim; }
    std::size_t values_at(std::size_t head) const { return (heads + head) * page_tokens * dim; }
    void* page(PageId id) const { return static_cast<std::byte*>(data) + to_int(id) * page_bytes; }
};

// Which positions of a sequence have keys and values, and in which pages.
struct DraftContext {
    Position begin = 0;
    Position end = 0;               // of positions [begin, end)
    std::span<const PageId> pages;  // that of position p is pages[p / 64 - begin / 64]

    PageId page_of(Position p) const { return pages[p / page_tokens - begin / page_tokens]; }
};

// Rows of one sequence: positions [first_position, first_position + row_count).  Context rows lie
// in `context`; a block's begin at context.end.
struct DraftRows {
    std::uint32_t first_row = 0;
    std::uint32_t row_count = 0;
    Position first_position = 0;
    DraftContext context;
};

struct RopeAngles {
    std::span<const DraftRows> rows;
    float theta = 10000.0f;
    Rows<float> angles;
};

struct RotateHeads {
    Rows<const float> input;
    std::size_t dim = 0;
    const float* norm = nullptr;  // [dim]
    float eps = 1e-6f;
    Rows<const float> angles;
    Rows<float> output;
};

struct StoreContext {
    std::span<const DraftRows> rows;
    Rows<const float> keys;
    Rows<const float> values;
    ContextPages pages;
};

struct BlockAttention {
    std::span<const DraftRows> blocks;
    Rows<const float> query;
    Rows<const float> key;
    Rows<const float> value;
    ContextPages pages;
    std::uint32_t window = 0;
    Arithmetic arithmetic = Arithmetic::standard;
    Rows<float> output;

    std::size_t heads() const { return query.columns / pages.dim; }
};

struct BlockConv {
    std::span<const DraftRows> blocks;
    Rows<const float> input;
    const float* base = nullptr;
    Rows<const float> gates;
    std::size_t taps = 0;
    std::size_t width = 0;  // channels of a group
    bool add = false;
    Rows<float> output;
};

// Whether a key at `key` is seen from `query`.
constexpr bool in_window(Position query, Position key, std::uint32_t window) {
    const Position apart = query > key ? query - key : key - query;
    return window == 0 || apart < window;
}

}  // namespace percheron::ops
