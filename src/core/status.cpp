#include "core/status.h"

namespace percheron {

std::string_view name_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument:
            return "invalid_argument";
        case ErrorCode::not_found:
            return "not_found";
        case ErrorCode::corrupt:
            return "corrupt";
        case ErrorCode::unsupported:
            return "unsupported";
        case ErrorCode::out_of_memory:
            return "out_of_memory";
        case ErrorCode::unavailable:
            return "unavailable";
        case ErrorCode::io:
            return "io";
        case ErrorCode::cancelled:
            return "cancelled";
        case ErrorCode::internal:
            return "internal";
    }
    return "unknown";
}

Error Error::in(std::string_view place) const {
    std::string message(place);
    message += ": ";
    message += message_;
    return Error(code_, std::move(message), reason_);
}

}  // namespace percheron
