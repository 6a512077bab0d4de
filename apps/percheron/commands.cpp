#include "commands.h"

namespace percheron::apps {

std::vector<AddCommand> all_commands() {
    return {add_inspect, add_quantize};
}

}  // namespace percheron::apps
