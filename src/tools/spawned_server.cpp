#include "tools/spawned_server.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace percheron::tools {
namespace {

constexpr const char* own_binary = "/proc/self/exe";

// In the child: becomes the server; does not return.
[[noreturn]] void become_server(const std::vector<char*>& arguments, int output) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(nothing, STDERR_FILENO);
    ::execv(own_binary, arguments.data());
    ::_exit(127);
}

// The port of "ready http://HOST:PORT model=...", or 0.
std::uint16_t port_of(const std::string& line) {
    const std::size_t end = line.find(" model=");
    if (line.rfind("ready http://", 0) != 0 || end == std::string::npos) return 0;
    const std::size_t colon = line.rfind(':', end);
    return static_cast<std::uint16_t>(std::atoi(line.c_str() + colon + 1));
}

}  // namespace

Result<std::unique_ptr<SpawnedServer>> SpawnedServer::start(
    const std::vector<std::string>& arguments) {
    std::vector<std::string> words{"percheron", "serve"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.insert(words.end(), {"--port", "0"});
    std::vector<char*> pointers;
    for (std::string& word : words)
        pointers.push_back(word.data());
    pointers.push_back(nullptr);

    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Error(ErrorCode::io, "cannot make a pipe");
    const pid_t process = ::fork();
    if (process < 0) return Error(ErrorCode::io, std::string("fork: ") + std::strerror(errno));
    if (process == 0) become_server(pointers, ends[1]);
    ::close(ends[1]);
    FILE* output = ::fdopen(ends[0], "r");
    char line[4096] = "";
    const bool spoke = std::fgets(line, sizeof line, output) != nullptr;
    std::fclose(output);
    const std::uint16_t port = spoke ? port_of(line) : 0;
    auto server = std::unique_ptr<SpawnedServer>(new SpawnedServer(process, port));
    if (port == 0) {
        return Error(ErrorCode::io,
                     "the server ended before it was ready; run percheron serve with "
                     "the same options to see why");
    }
    return server;
}

SpawnedServer::~SpawnedServer() {
    ::kill(process_, SIGTERM);
    int status = 0;
    ::waitpid(process_, &status, 0);
}

}  // namespace percheron::tools
