#include "parallel/flights.h"

#include <algorithm>

namespace percheron::parallel {

void Flights::begin(RequestId request, std::uint32_t sink, std::uint32_t choices,
                    std::uint32_t prompt_tokens) {
    Flight& flight = flights_[to_int(request)];
    flight.sink = sink;
    flight.prompt_tokens = prompt_tokens;
    flight.open = choices;
    flight.choices.resize(choices);
    open_choices_ += choices;
}

Flights::Choice* Flights::find(std::uint32_t sink, RequestId request, std::uint32_t choice) {
    const auto found = flights_.find(to_int(request));
    if (found == flights_.end() || found->second.sink != sink ||
        choice >= found->second.choices.size() || found->second.choices[choice].has_ended) {
        return nullptr;
    }
    return &found->second.choices[choice];
}

bool Flights::take(std::uint32_t sink, const EngineEvents& events) {
    for (const EngineEvents::Admitted& admitted : events.admitted) {
        Choice* const choice = find(sink, admitted.request, admitted.choice);
        if (choice == nullptr || choice->is_admitted) return false;
        choice->is_admitted = true;
        choice->cached_tokens = admitted.cached_tokens;
    }
    const auto is_running = [&](RequestId request, std::uint32_t choice) {
        const Choice* const found = find(sink, request, choice);
        return found != nullptr && found->is_admitted;
    };
    for (const EngineEvents::Progress& progress : events.progress) {
        if (!is_running(progress.request, 0)) return false;
    }
    for (const EngineEvents::PromptScores& scores : events.prompt_scores) {
        if (!is_running(scores.request, 0)) return false;
    }
    for (const EngineEvents::Tokens& run : events.runs) {
        if (!is_running(run.request, run.choice)) return false;
        find(sink, run.request, run.choice)->generated_tokens += run.count;
    }
    for (const EngineEvents::Finished& finished : events.finished) {
        if (!is_running(finished.request, finished.choice)) return false;
        find(sink, finished.request, finished.choice)->has_ended = true;
        const auto flight = flights_.find(to_int(finished.request));
        --open_choices_;
        if (--flight->second.open == 0) flights_.erase(flight);
    }
    return true;
}

void Flights::fail(std::uint64_t id, Flight& flight, const Error& error, Ends& ends) {
    auto of_sink = std::find_if(ends.begin(), ends.end(),
                                [&](const auto& end) { return end.first == flight.sink; });
    if (of_sink == ends.end()) of_sink = ends.insert(ends.end(), {flight.sink, {}});
    for (std::uint32_t i = 0; i < flight.choices.size(); ++i) {
        const Choice& choice = flight.choices[i];
        if (choice.has_ended) continue;
        EngineEvents::Finished& finished = of_sink->second.finished.emplace_back();
        finished.request = RequestId(id);
        finished.choice = i;
        finished.reason = FinishReason::failed;
        finished.error = error;
        finished.statistics.prompt_tokens = flight.prompt_tokens;
        finished.statistics.cached_tokens = choice.cached_tokens;
        finished.statistics.generated_tokens = choice.generated_tokens;
        --open_choices_;
    }
}

Flights::Ends Flights::fail(RequestId request, const Error& error) {
    Ends ends;
    const auto found = flights_.find(to_int(request));
    if (found == flights_.end()) return ends;
    fail(found->first, found->second, error, ends);
    flights_.erase(found);
    return ends;
}

Flights::Ends Flights::fail_all(const Error& error) {
    Ends ends;
    for (auto& [id, flight] : flights_) {
        fail(id, flight, error, ends);
    }
    flights_.clear();
    return ends;
}

}  // namespace percheron::parallel
