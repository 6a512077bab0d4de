#include "ops/cuda/step_batch.h"

#include <algorithm>

namespace percheron::ops::cuda {
namespace {

// The buffer: sequences, requests for digests, then four lists of 32-bit numbers.  Every part
// starts where the capacity says, so that places do not depend on the step.
struct Layout {
    std::size_t digests, tokens, sequence_of_row, logit_rows, pages, end;
    Layout(std::size_t rows, std::size_t page_count) {
        const auto after = [](std::size_t start, std::size_t bytes) {
            return (start + bytes + 63) / 64 * 64;
        };
        digests = after(0, rows * sizeof(DeviceSequence));
        tokens = after(digests, rows * sizeof(DigestRequest));
        sequence_of_row = after(tokens, rows * 4);
        logit_rows = after(sequence_of_row, rows * 4);
        pages = after(logit_rows, rows * 4);
        end = after(pages, page_count * 4);
    }
};

}  // namespace

Bytes StepBatch::bytes(std::size_t rows, std::size_t pages) {
    return Layout(rows, pages).end;
}

Status StepBatch::reserve(std::size_t rows, std::size_t pages) {
    return allocate(rows, pages);
}

Status StepBatch::allocate(std::size_t rows, std::size_t pages) {
    const Layout layout(rows, pages);
    PERCHERON_ASSIGN(device_, DeviceMemory::allocate(layout.end, "the rows of a step"));
    PERCHERON_ASSIGN(host_, PinnedMemory::allocate(layout.end, "the rows of a step"));
    row_capacity_ = rows;
    page_capacity_ = pages;
    const auto list = [&](std::size_t at) {
        return reinterpret_cast<const std::uint32_t*>(device_.data() + at);
    };
    view_.sequences = reinterpret_cast<const DeviceSequence*>(device_.data());
    view_.sequence_of_row = list(layout.sequence_of_row);
    view_.pages = list(layout.pages);
    digests_ = reinterpret_cast<const DigestRequest*>(device_.data() + layout.digests);
    tokens_ = list(layout.tokens);
    logit_rows_ = list(layout.logit_rows);
    return {};
}

Result<bool> StepBatch::upload(const RowBatch& batch, cudaStream_t stream) {
    std::size_t pages = 0;
    for (const SequenceRows& sequence : batch.sequences)
        pages += sequence.pages.size();
    const bool grows = pages > page_capacity_;
    if (grows) PERCHERON_TRY(allocate(row_capacity_, std::max(pages, 2 * page_capacity_)));

    const Layout layout(row_capacity_, page_capacity_);
    const auto list = [&](std::size_t at) {
        return reinterpret_cast<std::uint32_t*>(host_.data() + at);
    };
    auto* const sequences = reinterpret_cast<DeviceSequence*>(host_.data());
    std::uint32_t* const page_list = list(layout.pages);
    std::uint32_t next_page = 0;
    furthest_ = 0;
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
        const SequenceRows& s = batch.sequences[i];
        sequences[i] = {s.first_row,   s.row_count,    s.first_position, s.state_position,
                        s.commit_rows, to_int(s.slot), next_page};
        for (const PageId page : s.pages)
            page_list[next_page++] = to_int(page);
        std::fill_n(list(layout.sequence_of_row) + s.first_row, s.row_count,
                    static_cast<std::uint32_t>(i));
        furthest_ = std::max(furthest_, std::size_t{s.first_position} + s.row_count);
    }
    for (std::size_t row = 0; row < batch.rows(); ++row)
        list(layout.tokens)[row] = static_cast<std::uint32_t>(to_int(batch.tokens[row]));
    std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), list(layout.logit_rows));
    std::copy(batch.digests.begin(), batch.digests.end(),
              reinterpret_cast<DigestRequest*>(host_.data() + layout.digests));
    // Ascending rows of the step, so as many as there are rows are all of them.
    all_logits_ = batch.logit_rows.size() == batch.rows();
    view_.rows = static_cast<int>(batch.rows());
    view_.sequence_count = static_cast<int>(batch.sequences.size());
    PERCHERON_TRY(check(
        cudaMemcpyAsync(device_.data(), host_.data(), layout.pages + std::size_t{next_page} * 4,
                        cudaMemcpyHostToDevice, stream),
        "uploading the rows of a step"));
    return grows;
}

DeviceBatch StepBatch::rows(std::size_t first, std::size_t count) const {
    DeviceBatch some = view_;
    some.rows = static_cast<int>(count);
    some.first_row = static_cast<std::uint32_t>(first);
    some.sequence_of_row += first;
    return some;
}

}  // namespace percheron::ops::cuda
