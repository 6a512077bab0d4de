// What a reply may say, token by token: grammars, JSON schemas and forced tool calls behind two
// small interfaces.  The engine knows no texts; it asks which ids may come next.
//
// A TokenConstraint speaks of the reply after its thinking: where the prompt ends inside an open
// thinking block, it begins with the token after the closing tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron {

// The state of one choice.  One thread at a time.
class TokenConstraint {
  public:
    virtual ~TokenConstraint() = default;

    // Writes the ids that may come next: id v is allowed where allowed[v / 32] >> v % 32 & 1.
    // `allowed` has (vocabulary + 31) / 32 words, all of them are written.  Stop ids are among them
    // exactly where the text may end.  Not after a stop id was accepted.
    // Errors (internal): constraint_too_costly, when the work for one token grows without bounds.
    virtual Status fill(std::span<std::uint32_t> allowed) = 0;

    // Goes on behind `token`.  False: it may not come here, and nothing has changed.
    virtual bool accept(TokenId token) = 0;

    // Takes the last `count` accepted tokens back; not more than there were.
    virtual void roll_back(std::size_t count) = 0;
};

// What a request asks for, compiled; shared by its choices and by requests that ask for the same.
class OutputGrammar {
  public:
    virtual ~OutputGrammar() = default;
    // A state at the start of the text.  Any thread.
    virtual std::unique_ptr<TokenConstraint> start() const = 0;
    // What it was compiled from, so that another process can do the same; empty: it cannot.
    virtual std::string_view rules() const { return {}; }
};

}  // namespace percheron
