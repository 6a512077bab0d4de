#include "ops/cpu/product_set.h"

#include <algorithm>
#include <cassert>

namespace percheron::ops::cpu {
namespace {

// Below this many multiply-adds a region costs more than it saves.
constexpr std::size_t worth_a_region = 40'000;
// And a task should take a few microseconds.
constexpr std::size_t least_task = 30'000;
constexpr std::size_t tasks_per_thread = 8;

// Tasks end on multiples of what most tiles divide; those of the prefill class on whole slices. The
// inputs of FP8 products are scaled for a block of 128 outputs, so tasks do not cross one.
constexpr std::size_t block_of(const Product& product) {
    if (product.numeric_class == NumericClass::prefill) return 32;
    return product.weight.format == WeightFormat::fp8_block ? 64 : 24;
}

// The work of one output: dequantising it, then one multiply-add for every row.
std::size_t work_of_output(const Product& product) {
    return product.weight.k * (product.input.rows + 2) / 2;
}

}  // namespace

void ProductSet::start() {
    products_.clear();
    packings_.clear();
    gatherings_.clear();
    packed_.restart();
}

PackedRows ProductSet::pack(Rows<const float> rows, PackedLayout layout, bool round) {
    // A set shares few inputs, and the latest first.
    for (auto known = packings_.rbegin(); known != packings_.rend(); ++known) {
        if (known->source.data == rows.data && known->source.rows == rows.rows &&
            known->source.columns == rows.columns && known->layout == layout &&
            known->round == round)
            return known->packed;
    }
    const std::size_t width = packed_width(rows.columns);
    PackedRows packed;
    packed.rows = rows.rows;
    if (layout == PackedLayout::natural && !round && rows.columns == width) {
        packed.data = rows.data;
        packed.stride = rows.stride;
    } else {
        float* const to = packed_.take(rows.rows * width);
        packed.data = to;
        packed.stride = width;
        const auto pack_rows = [&](std::size_t first, std::size_t last) {
            for (std::size_t row = first; row < last; ++row)
                kernels_.pack_row(layout, round, rows.row(row), rows.columns, to + row * width);
        };
        constexpr std::size_t floats_a_task = 32'768;
        const std::size_t block = std::max<std::size_t>(1, floats_a_task / width);
        if (rows.rows <= 2 * block) {
            pack_rows(0, rows.rows);
        } else {
            pool_.parallel_for((rows.rows + block - 1) / block, [&](std::size_t task, std::size_t) {
                pack_rows(task * block, std::min(rows.rows, (task + 1) * block));
            });
        }
    }
    packings_.push_back({rows, layout, round, packed});
    return packed;
}

PackedRows ProductSet::pack_chosen(Rows<const float> rows, std::span<const std::uint32_t> chosen,
                                   PackedLayout layout, bool round) {
    const PackedRows all = pack(rows, layout, round);
    for (const Gathering& known : gatherings_)
        if (known.chosen.data() == chosen.data() && known.from.data == all.data) return known.to;
    const std::size_t width = packed_width(rows.columns);
    const PackedRows packed{packed_.take(chosen.size() * width), width, chosen.size()};
    gatherings_.push_back({all, chosen, packed});
    return packed;
}

void ProductSet::gather() {
    std::size_t floats = 0;
    for (const Gathering& gathering : gatherings_)
        floats += gathering.to.rows * gathering.to.stride;
    const auto copy = [this](std::size_t index, std::size_t) {
        const Gathering& gathering = gatherings_[index];
        // The set's own memory, handed out by pack_chosen().
        auto* to = const_cast<float*>(gathering.to.data);
        for (const std::uint32_t row : gathering.chosen) {
            std::copy_n(gathering.from.data + row * gathering.from.stride, gathering.to.stride, to);
            to += gathering.to.stride;
        }
    };
    constexpr std::size_t worth_splitting = 65'536;
    if (floats < worth_splitting)
        for (std::size_t i = 0; i < gatherings_.size(); ++i)
            copy(i, 0);
    else
        pool_.parallel_for(gatherings_.size(), copy);
}

const float* ProductSet::pack_heads(Rows<const float> rows, std::size_t heads, std::size_t width,
                                    bool round) {
    const std::size_t padded = packed_width(width);
    float* const to = packed_.take(rows.rows * heads * padded);
    const auto pack_row = [&](std::size_t row) {
        for (std::size_t head = 0; head < heads; ++head)
            kernels_.pack_row(PackedLayout::natural, round, rows.row(row) + head * width, width,
                              to + (row * heads + head) * padded);
    };
    if (rows.rows <= 16) {
        for (std::size_t row = 0; row < rows.rows; ++row)
            pack_row(row);
    } else {
        pool_.parallel_for(rows.rows, [&](std::size_t row, std::size_t) { pack_row(row); });
    }
    return to;
}

void ProductSet::reserve_panels(std::size_t k) {
    const std::size_t floats = panel_room(k);
    if (floats <= panel_stride_) return;
    panel_stride_ = floats;
    panels_.reserve(pool_.threads() * floats);
}

void ProductSet::fetch_ahead(std::span<const std::span<const FetchAhead::Range>> ranges) {
    for (std::size_t thread = 0; thread < ahead_.size(); ++thread)
        ahead_[thread] = thread < ranges.size() ? FetchAhead(ranges[thread]) : FetchAhead();
}

void ProductSet::run() {
    std::size_t work = 0;
    std::size_t widest = 0;
    for (const Product& product : products_) {
        work += work_of_output(product) * (product.last - product.first);
        widest = std::max(widest, product.weight.k);
    }
    reserve_panels(widest);
    gather();

    const auto compute = [this](const Product& product, std::size_t first, std::size_t last,
                                std::size_t thread) {
        float* const output = product.output + (first - product.first);
        if (product.numeric_class == NumericClass::prefill)
            kernels_.product_prefill(product.weight, first, last, product.input, output,
                                     product.output_stride, panel(thread));
        else
            kernels_.product(product.weight, first, last, product.input, output,
                             product.output_stride, panel(thread), &ahead_[thread]);
    };
    if (work < worth_a_region || pool_.threads() == 1) {
        for (const Product& product : products_)
            compute(product, product.first, product.last, 0);
        return;
    }

    const std::size_t task_work = std::max(least_task, work / (pool_.threads() * tasks_per_thread));
    pieces_.clear();
    for (std::size_t i = 0; i < products_.size(); ++i) {
        const Product& product = products_[i];
        const std::size_t least = block_of(product);
        // Pieces as even as whole blocks allow: no small one at the end.
        const std::size_t outputs = product.last - product.first;
        const std::size_t count = std::max<std::size_t>(
            1, (work_of_output(product) * outputs + task_work / 2) / task_work);
        const std::size_t block = ((outputs + count - 1) / count + least - 1) / least * least;
        for (std::size_t first = product.first; first < product.last; first += block)
            pieces_.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(first),
                               static_cast<std::uint32_t>(std::min(first + block, product.last))});
    }
    pool_.parallel_for(pieces_.size(), [&](std::size_t task, std::size_t thread) {
        const Piece& piece = pieces_[task];
        compute(products_[piece.product], piece.first, piece.last, thread);
    });
}

void ProductSet::run(std::span<const Linear> ops) {
    start();
    for (const Linear& op : ops) {
        assert(op.input.columns == op.weight.k && op.output.columns == op.weight.n);
        if (op.row_count() == 0 || op.weight.n == 0) continue;
        const PackedLayout layout = layout_for(op.weight.format, op.numeric_class);
        const bool round = op.arithmetic == Arithmetic::standard;
        const PackedRows input = op.rows.empty() ? pack(op.input, layout, round)
                                                 : pack_chosen(op.input, op.rows, layout, round);
        add({op.weight, 0, op.weight.n, input, op.output.data, op.output.stride, op.numeric_class});
    }
    run();
}

}  // namespace percheron::ops::cpu
