// Text from outside on its way to a terminal or a log.
#pragma once

#include <string>
#include <string_view>

namespace percheron {

// `text` with everything a reader would not see as it is written out: control characters, bytes
// that are no UTF-8, and characters that are invisible, break lines or turn the direction of
// writing, as \n, \t, \r, \x1b or \u{202e}.  The rest stays, so that a name in any script remains
// readable.  The result moves no cursor and is one line.
std::string visible_text(std::string_view text);

}  // namespace percheron
