#include "commands.h"

#include <cstdio>

#include "core/visible_text.h"

namespace percheron::apps {

std::vector<AddCommand> all_commands() {
    return {add_serve, add_chat,    add_bench,   add_bench_streams, add_draft,
            add_eval,  add_inspect, add_quality, add_quantize,      add_rank,
            add_score, add_synth,   add_top};
}

void say_fault(std::string_view command, std::string_view message) {
    std::fprintf(stderr, "percheron %.*s: %s\n", static_cast<int>(command.size()), command.data(),
                 visible_text(message).c_str());
}

int exit_code_of(const Status& done, std::string_view command) {
    if (done.ok()) return 0;
    say_fault(command, done.error().message());
    return 1;
}

}  // namespace percheron::apps
