/* base/banned.h - calls that have a better one; included before every source by the build */
#ifndef MUSTER_BASE_BANNED_H
#define MUSTER_BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC poison strcpy strcat sprintf vsprintf strtok gmtime localtime atoi atof gets

#endif
