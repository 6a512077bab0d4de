#include "commands.h"

namespace percheron::apps {

std::vector<AddCommand> all_commands() {
    return {};
}

}  // namespace percheron::apps
