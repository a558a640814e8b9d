# build_info.cmake - writes build_info.h: what was measured, so that a record can say it.
#
# Run at each build by the target fa_bench_build_info, with -DSOURCE_DIR -DOUTPUT -DCOMPILER
# -DFLAGS -DBUILD_TYPE. The file is touched only when its text changes.

# The digest covers the library's sources by name and content, in a fixed order.
file(GLOB_RECURSE sources RELATIVE ${SOURCE_DIR}
     ${SOURCE_DIR}/include/*.h ${SOURCE_DIR}/kernels/*.h ${SOURCE_DIR}/kernels/*.c
     ${SOURCE_DIR}/kernels/*.cuh ${SOURCE_DIR}/kernels/*.cu)
list(SORT sources)
set(text "")
foreach(source IN LISTS sources)
    file(SHA256 ${SOURCE_DIR}/${source} hash)
    string(APPEND text "${hash}  ${source}\n")
endforeach()
string(SHA256 digest "${text}")

set(describe "no git")
find_package(Git QUIET)
if(GIT_FOUND)
    execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty --tags
                    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE answer ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(NOT failed)
        set(describe ${answer})
    endif()
endif()

string(REPLACE ";" " " FLAGS "${FLAGS}")
string(REGEX REPLACE " +" " " FLAGS "${FLAGS}")
string(STRIP "${FLAGS}" FLAGS)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[
#define FB_SOURCE_DIGEST "@digest@"
#define FB_GIT_DESCRIBE "@describe@"
#define FB_COMPILER "@COMPILER@"
#define FB_FLAGS "@FLAGS@"
#define FB_BUILD_TYPE "@BUILD_TYPE@"
]] @ONLY)
