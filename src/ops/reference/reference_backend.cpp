#include "ops/reference/reference_backend.h"

#include "ops/reference/reference_primitives.h"

namespace percheron::ops::reference {

std::unique_ptr<ComposedBackend> make_reference_backend(Arithmetic arithmetic) {
    return std::make_unique<ComposedBackend>("reference", arithmetic,
                                             std::make_unique<ReferencePrimitives>());
}

}  // namespace percheron::ops::reference
