// The requests that a rank works on, as the front knows them: held against every event, so that
// each choice ends once whatever the rank does or says.  Not thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "percheron/engine.h"

#include "core/status.h"

namespace percheron::parallel {

class Flights {
  public:
    void begin(RequestId request, std::uint32_t sink, std::uint32_t choices,
               std::uint32_t prompt_tokens);

    // Takes the events in.  False: they contradict what came before; the rank is not to be
    // believed, and nothing of them may be passed on.
    bool take(std::uint32_t sink, const EngineEvents& events);

    // Ends what is open of one request, or of all, for `error`; by sink.
    using Ends = std::vector<std::pair<std::uint32_t, EngineEvents>>;
    Ends fail(RequestId request, const Error& error);
    Ends fail_all(const Error& error);

    std::uint32_t open_choices() const { return open_choices_; }

  private:
    struct Choice {
        bool is_admitted = false;
        bool has_ended = false;
        std::uint32_t cached_tokens = 0;
        std::uint32_t generated_tokens = 0;
    };
    struct Flight {
        std::uint32_t sink = 0;
        std::uint32_t prompt_tokens = 0;
        std::uint32_t open = 0;
        std::vector<Choice> choices;
    };

    // Null: there is none, or it has ended.
    Choice* find(std::uint32_t sink, RequestId request, std::uint32_t choice);
    void fail(std::uint64_t id, Flight& flight, const Error& error, Ends& ends);

    std::unordered_map<std::uint64_t, Flight> flights_;
    std::uint32_t open_choices_ = 0;
};

}  // namespace percheron::parallel
