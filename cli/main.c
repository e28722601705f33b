/* cli/main.c - the table of commands */
#include <stdio.h>

int main(void)
{
    puts("muster " MUSTER_VERSION);
    return 0;
}
