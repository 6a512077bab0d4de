// What front and rank tell each other, a message each: a frame of four bytes of length, one byte of
// kind, and fields (message_bytes.h).  Both are of one build, which the rank's first message names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/engine.h"

#include "core/status.h"
#include "parallel/message_bytes.h"

namespace percheron::parallel {

enum class MessageKind : std::uint8_t {
    // From the rank.
    hello,     // its build
    stage,     // of its start
    ready,     // the description; requests may come
    refused,   // it cannot start: the error
    events,    // of one step
    rejected,  // a request that it cannot take after all
    status,    // now and then, and after every end of a request
    // To the rank.
    submit,
    cancel,
};

struct Hello {
    std::string build;
};
struct Stage {
    std::string name;
};
struct Ready {
    EngineDescription description;
};
struct Refused {
    Error error{ErrorCode::internal, ""};
};
// Sinks are numbered by the front: events of one step and one sink stay together.
struct Events {
    std::uint32_t sink = 0;
    EngineEvents events;
};
struct Rejected {
    RequestId request{};
    Error error{ErrorCode::internal, ""};
};
struct StatusReport {
    EngineStatus status;
};
struct Submit {
    std::uint32_t sink = 0;
    RequestId request{};
    GenerationRequest content;  // `grammar` stays null: `rules` say it
    std::string rules;
};
struct Cancel {
    RequestId request{};
    std::uint32_t choice = 0;
};

// The whole frame.
Message frame_of(const Hello& message);
Message frame_of(const Stage& message);
Message frame_of(const Ready& message);
Message frame_of(const Refused& message);
Message frame_of(const Events& message);
Message frame_of(const Rejected& message);
Message frame_of(const StatusReport& message);
Message frame_of(const Submit& message);
Message frame_of(const Cancel& message);

// The fields behind the kind.  False: they are not a message of this kind; for events also: their
// runs and scores leave their lists.  `message` may then hold anything.
bool read(std::span<const std::uint8_t> fields, Hello& message);
bool read(std::span<const std::uint8_t> fields, Stage& message);
bool read(std::span<const std::uint8_t> fields, Ready& message);
bool read(std::span<const std::uint8_t> fields, Refused& message);
bool read(std::span<const std::uint8_t> fields, Events& message);
bool read(std::span<const std::uint8_t> fields, Rejected& message);
bool read(std::span<const std::uint8_t> fields, StatusReport& message);
bool read(std::span<const std::uint8_t> fields, Submit& message);
bool read(std::span<const std::uint8_t> fields, Cancel& message);

// Names this build: its linker's id.
const std::string& own_build();

}  // namespace percheron::parallel
