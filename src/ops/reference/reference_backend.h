// The stages as the composition of the oracle's primitives: what other backends are compared with.
#pragma once

#include <memory>

#include "ops/composed_backend.h"

namespace percheron::ops::reference {

std::unique_ptr<ComposedBackend> make_reference_backend(Arithmetic arithmetic);

}  // namespace percheron::ops::reference
