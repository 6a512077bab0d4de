// The command line: one small file a command, joined here.
#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "number_checks.h"

int main(int argc, char** argv) {
    CLI::App app{"Percheron: a native serving engine for GLM-5.3-Flash"};
    app.require_subcommand(1);
    app.set_version_flag("--version", PERCHERON_VERSION);

    int exit_code = 0;
    for (const percheron::apps::AddCommand& add : percheron::apps::all_commands()) {
        add(app, exit_code);
    }
    percheron::apps::check_counts(app);
    const auto commands = app.get_subcommands({});
    if (argc > 1 && argv[1][0] != '-' &&
        std::none_of(commands.begin(), commands.end(),
                     [&](const CLI::App* command) { return command->check_name(argv[1]); })) {
        std::fprintf(stderr, "percheron: there is no command %s; see percheron --help\n", argv[1]);
        return 2;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const int code = app.exit(error);
        return code == 0 ? 0 : 2;
    }
    return exit_code;
}
