// data: URLs (RFC 2397): the bytes that a client put into an address.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace percheron::vision {

// Whether `url` is one; the scheme is compared without case.
bool is_data_url(std::string_view url);

// The bytes behind the comma.  The media type and its parameters are passed over: what the bytes
// are is told by the bytes.  With the parameter `base64` the text is base64 of either alphabet
// (RFC 4648, "+/" or "-_"), with or without padding and line breaks; percent-encoding is undone
// first in both forms.
// Errors: invalid_argument in the form "is not ...", to stand behind a place.
Result<std::vector<std::uint8_t>> bytes_of_data_url(std::string_view url);

}  // namespace percheron::vision
