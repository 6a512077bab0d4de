// The program's own operator new, which counts, in a file of its own: a compiler that sees both the
// caller and free() takes them for a mistake.
#include "support/allocations.h"

#include <cstdlib>
#include <new>

namespace percheron::tests {

std::atomic<std::size_t> allocations{0};
std::atomic<std::size_t> allocated_bytes{0};

namespace {

void* allocate(std::size_t size, std::size_t alignment) {
    ++allocations;
    allocated_bytes += size;
    void* const memory = std::aligned_alloc(alignment, (size + alignment) / alignment * alignment);
    if (memory == nullptr) std::abort();
    return memory;
}

}  // namespace
}  // namespace percheron::tests

void* operator new(std::size_t size) {
    return percheron::tests::allocate(size, 16);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
    return percheron::tests::allocate(size, static_cast<std::size_t>(alignment));
}
// The library's own would do for these, but a sanitizer's do not go through those above.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return percheron::tests::allocate(size, 16);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return percheron::tests::allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size) {
    return percheron::tests::allocate(size, 16);
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
    return percheron::tests::allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
    return percheron::tests::allocate(size, 16);
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return percheron::tests::allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
    std::free(memory);
}
void operator delete[](void* memory) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
    std::free(memory);
}
