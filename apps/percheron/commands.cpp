#include "commands.h"

namespace percheron::apps {

std::vector<AddCommand> all_commands() {
    return {add_serve, add_bench, add_eval, add_inspect, add_quantize, add_score};
}

}  // namespace percheron::apps
