"""Tables that show a time of day for moments that are days away."""
import os,time
os.environ['TZ']='UTC'; time.tzset()
from pycontrol.cli import screens
from pycontrol.cli.verbs import _budget
from pycontrol.cli.tables import out, clock
from pycontrol.cli.journal_commands import _report
now=1_790_000_000.0
out(_budget({'limits':[dict(account='user ann',kind='gpu_hours_month',limit=500.0,used=500.0,share=1.0,ends_s=now+10*86400,set_by='root',set_s=now-20*86400)]}))
a=dict(name='sweep',app_id='application_1_0001',user='ann',final_state='SUCCEEDED',gpus_held=0,finished_s=now-25*86400,submitted_s=now-26*86400,attained_gpu_s=7200,best=None,model_path='')
b={**a,'name':'later','app_id':'application_1_0002','submitted_s':now-3600*1.0,'finished_s':now-1800}
print(); out(screens.jobs({'now_s':now,'apps':[b,a]}))
print(); print('queue:', screens.boosted({'by':'root','until_s':now+20*86400}))
print(); out(screens.audit({'checked':{},'unchecked':[],'complete':True,'violations':[{'kind':'gpu_in_two_containers','when':now-12*86400,'what':'GPU n1:0'}]}))
print(); print(_report({'mended':[],'file':'journal.sqlite','version':6,'bytes':9e8,'first_s':now-29*86400,'facts':9,'facts_after_snapshot':1,'snapshots':2,'set_aside':0,'problems':[],'readable':True}))
