// Non-owning views of numbers.  The memory may be the host's or a device's: a view only says where
// and in which shape; who may touch it is said by whoever hands it out.
#pragma once

#include <cassert>
#include <cstddef>

namespace percheron {

// A row-major matrix whose rows may be farther apart than they are long.
template <class T>
struct Rows {
    T* data = nullptr;
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::size_t stride = 0;  // elements from one row to the next, at least `columns`

    Rows() = default;
    Rows(T* data, std::size_t rows, std::size_t columns)
        : data(data), rows(rows), columns(columns), stride(columns) {}
    Rows(T* data, std::size_t rows, std::size_t columns, std::size_t stride)
        : data(data), rows(rows), columns(columns), stride(stride) {
        assert(stride >= columns);
    }

    T* row(std::size_t index) const { return data + index * stride; }
    Rows slice(std::size_t first, std::size_t count) const {
        return Rows(row(first), count, columns, stride);
    }
    Rows column_slice(std::size_t first, std::size_t count) const {
        return Rows(data + first, rows, count, stride);
    }
    operator Rows<const T>() const { return Rows<const T>(data, rows, columns, stride); }
};

}  // namespace percheron
