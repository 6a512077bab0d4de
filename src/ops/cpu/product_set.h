// A set of matrix products as one piece of parallel work: every distinct input is packed once, the
// outputs of all members are cut into tasks of a few microseconds.
//
// How the outputs are cut depends on the machine and the rows; the bits do not (kernels.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/working_memory.h"
#include "ops/linear.h"

namespace percheron::ops::cpu {

// Outputs [first, last) of one matrix for packed rows.
struct Product {
    WeightMatrix weight;
    std::size_t first = 0;
    std::size_t last = 0;
    PackedRows input;
    float* output = nullptr;  // of output `first`, row 0
    std::size_t output_stride = 0;
    NumericClass numeric_class = NumericClass::decode;
};

// How the rows of a class are packed for weights of a format.
inline PackedLayout layout_for(WeightFormat format, NumericClass numeric_class) {
    return numeric_class == NumericClass::prefill ? PackedLayout::natural : layout_for(format);
}

class ProductSet {
  public:
    ProductSet(const Kernels& kernels, ThreadPool& pool)
        : kernels_(kernels), pool_(pool), ahead_(pool.threads()) {}

    // The products of a set of Linear.
    void run(std::span<const Linear> ops);

    // Starts a set by hand: pack inputs, add products, run.
    void start();
    // Packs rows for weights of `layout`; the same rows in the same layout are packed once.
    PackedRows pack(Rows<const float> rows, PackedLayout layout, bool round);
    // The rows of `rows` that `chosen` names, packed; run() puts them in place.
    PackedRows pack_chosen(Rows<const float> rows, std::span<const std::uint32_t> chosen,
                           PackedLayout layout, bool round);
    // Packs each of `heads` column slices of `width` by itself: row r, head h lies at
    // data + (r * heads + h) * packed_width(width).
    const float* pack_heads(Rows<const float> rows, std::size_t heads, std::size_t width,
                            bool round);
    void add(const Product& product) { products_.push_back(product); }
    void run();

    // What each thread's products fetch from now on (one list a thread, valid until the next call);
    // none: nothing.
    void fetch_ahead(std::span<const std::span<const FetchAhead::Range>> ranges);

    // Room for sets of at most `products`, with packed inputs of `packed_floats` together, the
    // widest of width k.
    void reserve(std::size_t packed_floats, std::size_t k, std::size_t products) {
        packed_.reserve(packed_floats);
        reserve_panels(k);
        products_.reserve(products);
        packings_.reserve(products);
        gatherings_.reserve(products);
        pieces_.reserve(8 * products + 1024);
    }
    // Panel scratch of a thread, for inputs of width k.
    void reserve_panels(std::size_t k);
    float* panel(std::size_t thread) { return panels_.data() + thread * panel_stride_; }

  private:
    void gather();

    struct Packing {
        Rows<const float> source;
        PackedLayout layout;
        bool round;
        PackedRows packed;
    };
    struct Gathering {
        PackedRows from;
        std::span<const std::uint32_t> chosen;
        PackedRows to;
    };
    struct Piece {
        std::uint32_t product;
        std::uint32_t first, last;
    };

    const Kernels& kernels_;
    ThreadPool& pool_;
    std::vector<Product> products_;
    std::vector<Packing> packings_;
    std::vector<Gathering> gatherings_;
    std::vector<Piece> pieces_;
    GrowingBlocks packed_;
    std::vector<FetchAhead> ahead_;  // one a thread
    WorkingMemory panels_;
    std::size_t panel_stride_ = 0;
};

}  // namespace percheron::ops::cpu
