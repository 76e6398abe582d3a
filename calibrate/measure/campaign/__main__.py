"""The smoke step, in a process: python -m calibrate.measure.campaign CAMPAIGN OUT"""

import sys

from calibrate.measure.campaign.smoke import main

sys.exit(main(sys.argv[1:]))
