// The rank's side: an engine of this process, worked for a front at the other end of a connection.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "percheron/engine.h"

#include "core/status.h"

namespace percheron::parallel {

struct RankWork {
    // Makes the engine; `say` is told what begins.
    std::function<Result<std::unique_ptr<Engine>>(
        const std::function<void(const std::string&)>& say)>
        load;
    // From OutputGrammar::rules() to the grammar, on a thread of its own.
    std::function<Result<std::shared_ptr<const OutputGrammar>>(const std::string& rules)> compile;
};

// Returns when the front has gone; the connection is closed then.  Errors: of `load`, which the
// front has been told, and the engine's death.
Status serve_rank(int connection, const RankWork& work);

}  // namespace percheron::parallel
