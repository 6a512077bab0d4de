#include "commands.h"

namespace percheron::apps {

std::vector<AddCommand> all_commands() {
    return {add_serve,   add_chat,    add_bench,    add_bench_streams, add_draft, add_eval,
            add_inspect, add_quality, add_quantize, add_score,         add_synth, add_top};
}

}  // namespace percheron::apps
