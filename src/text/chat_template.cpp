#include "text/chat_template.h"

#include <ctime>

#include "text/jinja_parser.h"

namespace percheron {

Result<ChatTemplate> ChatTemplate::compile(std::string_view source) {
    try {
        return ChatTemplate(std::make_shared<const jinja::Block>(jinja::parse_template(source)));
    } catch (const jinja::Failure& failure) {
        return Error(ErrorCode::unsupported, std::string("the chat template's ") + failure.what());
    }
}

Result<MarkedText> ChatTemplate::render(std::vector<std::pair<std::string, jinja::Value>> variables,
                                        const jinja::RunLimits& limits) const {
    try {
        return jinja::run_template(*block_, std::move(variables), limits, std::time(nullptr));
    } catch (const jinja::Failure& failure) {
        return Error(ErrorCode::invalid_argument, failure.what());
    }
}

}  // namespace percheron
