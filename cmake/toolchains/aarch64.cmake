# Builds for 64-bit ARM on another machine, with Debian's cross compiler (g++-aarch64-linux-gnu):
#
#   cmake --preset release -B build-aarch64 -DPERCHERON_SYSROOT=/path/to/arm64-root \
#       -DCMAKE_TOOLCHAIN_FILE=cmake/toolchains/aarch64.cmake
#
# PERCHERON_SYSROOT is the root of a Debian or Ubuntu arm64 with the packages of scripts/setup; it
# need not be able to start.  Tests run under qemu-aarch64-static (qemu-user-static).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Kept in the cache: a build that configures itself again may have another environment.
set(PERCHERON_SYSROOT "$ENV{PERCHERON_SYSROOT}" CACHE PATH "The root of an arm64 Debian")
if(NOT IS_DIRECTORY "${PERCHERON_SYSROOT}")
    message(FATAL_ERROR "Set PERCHERON_SYSROOT to the root of an arm64 Debian with the packages of "
        "scripts/setup.")
endif()
# The compiler's own checks read this file too.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PERCHERON_SYSROOT)
set(CMAKE_SYSROOT "${PERCHERON_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${PERCHERON_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR}
    "${PERCHERON_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${PERCHERON_SYSROOT}/usr/share/pkgconfig")

find_program(PERCHERON_EMULATOR NAMES qemu-aarch64-static qemu-aarch64)
if(PERCHERON_EMULATOR)
    set(CMAKE_CROSSCOMPILING_EMULATOR "${PERCHERON_EMULATOR};-L;${PERCHERON_SYSROOT}")
endif()
