// How often the MTP layer's first draft agrees with the trunk along a text as it is
// (teacher-forced): p is the trunk's distribution of a token after temperature and top-p, q the
// layer's from one token less.
//   greedy     argmax p = argmax q
//   coupled    argmax (ln p + g) = argmax (ln q + g), the product's rule, with the noise of the
//              position
//   classical  sum_v min(p, q) = 1 - d, what rejection sampling would accept (d: total variation)
//   bound      (1 - d) / (1 + d), which coupling never falls below but for noise
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "percheron/types.h"

#include "core/status.h"
#include "tools/load_engine.h"

namespace percheron::tools {

struct Agreement {
    std::uint64_t positions = 0;
    double greedy = 0;  // sums over the positions
    double coupled = 0;
    double classical = 0;
    double bound = 0;

    void add(const Agreement& other);
};

struct AgreementOptions {
    LoadOptions load;
    float temperature = 1.0f;
    float top_p = 1.0f;
    std::uint32_t tokens = 512;  // of a text at most
};

// The trunk and its layer, over one text at a time.
class AgreementRunner {
  public:
    virtual ~AgreementRunner() = default;
    // Null where the model has no such layer or the device does not compute it.
    static Result<std::unique_ptr<AgreementRunner>> load(const AgreementOptions& options);
    // Adds what the text's tokens but the first two say.
    virtual Status run(std::span<const TokenId> ids, Agreement& agreement) = 0;
};

}  // namespace percheron::tools
