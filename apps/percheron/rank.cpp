// percheron rank: computes for a server that has started it (src/parallel).
#include <functional>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "percheron/engine.h"

#include "commands.h"
#include "core/logging.h"
#include "grammar/grammar_compiler.h"
#include "load_flags.h"
#include "parallel/rank_server.h"
#include "text/tokenizer.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

struct RankOptions {
    LoadFlags flags;
    int connection = -1;
};

// What both halves of the work need: the engine, and grammars over its tokens.
class Rank {
  public:
    explicit Rank(RankOptions options) : options_(std::move(options)) {}

    Result<std::unique_ptr<Engine>> load(const std::function<void(const std::string&)>& say) {
        tools::LoadOptions& load = options_.flags.load;
        load.on_stage = say;
        PERCHERON_ASSIGN(load.folder, tools::resolve_model(options_.flags.model));
        PERCHERON_ASSIGN(const auto text, tools::text_folder(load.folder));
        PERCHERON_ASSIGN(Tokenizer tokenizer, Tokenizer::load(text / "tokenizer.json"));
        tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
        auto engine = tools::load_engine(load, *tokenizer_);
        if (engine.ok()) description_ = (*engine)->description();
        return engine;
    }

    // Made with the first grammar: it takes as long as the vocabulary is large.
    Result<std::shared_ptr<const OutputGrammar>> compile(const std::string& rules) {
        if (grammars_ == nullptr) {
            grammar::GrammarCompilerOptions options;
            options.vocabulary = description_.vocabulary;
            options.stop_tokens = description_.stop_tokens;
            grammars_ = std::make_unique<grammar::GrammarCompiler>(*tokenizer_, std::move(options));
        }
        return grammars_->compile(rules);
    }

  private:
    RankOptions options_;
    std::unique_ptr<Tokenizer> tokenizer_;
    EngineDescription description_;
    std::unique_ptr<grammar::GrammarCompiler> grammars_;
};

Status run_rank(const RankOptions& options) {
    Rank rank(options);
    return parallel::serve_rank(options.connection,
                                {[&](const auto& say) { return rank.load(say); },
                                 [&](const std::string& rules) { return rank.compile(rules); }});
}

}  // namespace

void add_rank(CLI::App& app, int& exit_code) {
    const auto options = std::make_shared<RankOptions>();
    CLI::App* command = app.add_subcommand(
        "rank",
        "Compute for a server: percheron serve --ranks process starts this by itself.\n"
        "Example: percheron serve models/nano --ranks process");
    add_load_flags(*command, options->flags);
    add_serving_flags(*command, options->flags.load);
    command->add_option("--max-queued", options->flags.load.max_queued,
                        "Replies that may wait beyond");
    command
        ->add_option("--connection", options->connection,
                     "Descriptor of a socket whose other end the server has")
        ->required();
    command->callback(
        [options, &exit_code] { exit_code = exit_code_of(run_rank(*options), "rank"); });
}

}  // namespace percheron::apps
