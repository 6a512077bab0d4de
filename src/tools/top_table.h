// The requests of `percheron top`: a row each, as many columns as there is room for.
#pragma once

#include "tools/server_sample.h"
#include "tools/styled_lines.h"

namespace percheron::tools {

void add_request_table(StyledLines& lines, const ServerSample& sample);

}  // namespace percheron::tools
